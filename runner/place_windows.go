package runner

// checkPlace accepts any directory: its parent admits no other account.
func checkPlace(string) error { return nil }
