"""The parameters of a study, one section a file, named after the room that owns them."""
