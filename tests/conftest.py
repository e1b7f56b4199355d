"""Puts this folder in reach of imports: helpers of unit and integration tests alike lie beside this file."""

import os

os.environ["LLMSYS_CALIBRATION"] = "off"  # what somebody has measured on this machine is no part of a test
