"""Object stores for tests: an emulator with a front before it, and one in memory whose mood a test sets."""
