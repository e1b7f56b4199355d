"""From a finished run to a model folder that anything can load: merged, cut into files, checked."""
