"""``python -m pipeline JOB …``"""

import sys

from pipeline.main import main

sys.exit(main())
