"""`python -m cpkv`: the command line."""

import sys

from cpkv.cli import main

sys.exit(main())
