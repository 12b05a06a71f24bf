// Package registered tells whether this user has a service of their own registered with
// the operating system. It is apart from package register, which makes it so, for the
// client asks this each time that no service answers, and is to start quickly.
package registered

// Name is what the service is called.
const Name = "queuectl"
