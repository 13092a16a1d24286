"""The `tsallis` command: training, answering, analysis and serving of models from files."""
