"""The `tsallis` command: train models, answer lines of text, and analyse and serve trained models."""
