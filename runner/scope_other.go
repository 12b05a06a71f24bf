//go:build unix && !linux

package runner

// scopes are the words that start a runner in a control group of its own: here there are none.
func scopes() [][]string { return nil }

// managerFolder is where a user's manager listens.
func managerFolder() string { return "" }
