"""Score a language model's bias, fine-tune it on community text, score it again."""

import os

# Libraries read these when they are imported, so they stand before any of them: their bars and
# advice would bury what a run has to say.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
