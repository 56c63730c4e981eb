"""Why a plan is as it is: margins, runners-up, and the advice that is printed."""
