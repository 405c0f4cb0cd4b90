# The command threeml with a volume for what it writes, see docs/install.md:
#   docker build -t threeml .                                              torch as the package index has it: with CUDA
#   docker build -t threeml --build-arg TORCH_INDEX=<index of torch's CPU wheels> .                        without CUDA
#   docker run --rm -v "$PWD:/work" threeml pretrain -p mask_rate 0.5           a GPU: --gpus all, or your runtime's way
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS wheel
# of the checkout, for the run records: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=""
WORKDIR /source
COPY . .
RUN if [ -n "$COMMIT" ]; then echo "$COMMIT" > threeml_core/commit.txt; fi
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM ${PYTHON_IMAGE}
ARG EXTRAS=data,finetune,notebooks,report,tensorboard
ARG TORCH_INDEX=""
COPY constraints.txt /opt/threeml/
# torch has a layer of its own: it is the largest by far, and changes least
RUN pip install --no-cache-dir -c /opt/threeml/constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
COPY --from=wheel /wheel /opt/threeml/wheel
RUN pip install --no-cache-dir -c /opt/threeml/constraints.txt "$(echo /opt/threeml/wheel/*.whl)[$EXTRAS]"

# of the user who owns the volume: --build-arg UID=$(id -u)
ARG UID=1000
RUN useradd --create-home --uid "$UID" study && mkdir /work && chown study /work
USER study
WORKDIR /work
ENTRYPOINT ["threeml"]
CMD ["--help"]
