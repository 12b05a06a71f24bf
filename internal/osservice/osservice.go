// Package osservice reports whether this user has a service registered with the operating system. The
// client calls it when no service answers. Package install, which registers the service, is separate,
// so that the client does not link it and starts fast.
package osservice

// Name is the name of the service.
const Name = "queuectl"
