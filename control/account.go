package control

import (
	"os/user"
	"strconv"
)

// ServiceAccount is the account that packages run the service as.
const ServiceAccount = "queuectl"

func isServiceAccount(uid int) bool {
	u, err := user.Lookup(ServiceAccount)
	return err == nil && u.Uid == strconv.Itoa(uid)
}
