// Package registered reports whether this user has a service registered with the operating system.
// It is separate from package register, so that the client does not link that package and starts
// fast. The client calls this package whenever no service answers.
package registered

// Name is the name of the service.
const Name = "queuectl"
