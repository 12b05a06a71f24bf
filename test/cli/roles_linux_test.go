package cli

// roles contains the functions of helper processes, by the environment variable that selects them.
var roles = map[string]func() int{"QUEUECTL_TEST_NC": netcat}
