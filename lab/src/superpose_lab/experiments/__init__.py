"""The paper's experiments, fine-tunes of pretrained networks, and protocols of recognition."""
