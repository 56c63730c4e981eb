"""Why a plan chose what it chose: margins, runners-up, and the advice that is printed."""
