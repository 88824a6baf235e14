"""Views of files that hold a part of the stages: ONNX, snapshots, compiled models."""
