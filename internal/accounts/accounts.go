// Package accounts looks up the system's users and groups, by name and by number.
//
// Start with Resolver, which differs by operating system.
package accounts

// NoAccountError reports that an account does not exist. Any other error of a lookup means that the
// lookup failed, so the account may exist.
type NoAccountError string

// Error returns the message.
func (e NoAccountError) Error() string { return string(e) }

// Account is a user as the system describes it.
type Account struct {
	Name, HomeDir, Shell string
	UID, GID             uint32
	Groups               []uint32 // the account's groups, including GID; nil if they were not looked up
}
