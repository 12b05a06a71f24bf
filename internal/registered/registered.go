// Package registered reports whether this user has a service registered with the operating system.
// It is separate from package register, so that the client, which checks this each time that no
// service answers, starts fast.
package registered

// Name is the name of the service.
const Name = "queuectl"
