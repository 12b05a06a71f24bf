package cli

var roles = map[string]func() int{"QUEUECTL_TEST_NC": netcat}
