package cli

// roles contains what this test binary does as a helper process, by the environment variable that selects it.
var roles = map[string]func() int{"QUEUECTL_TEST_NC": netcat}
