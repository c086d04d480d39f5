"""Applications: state machines that come with rsm."""
