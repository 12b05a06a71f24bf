package cli

// helperProcessMains contains the functions that this test binary executes instead of its tests, by the environment
// variable that requests the function.
var helperProcessMains = map[string]func() int{"QUEUECTL_TEST_NC": runNetcat}
