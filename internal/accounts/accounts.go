// Package accounts knows the system's users and groups, by name and by number.
package accounts

// ErrNone says for certain that there is no such account; any other error that it could
// not be told.
type ErrNone string

// Error says who is not there.
func (e ErrNone) Error() string { return string(e) }

// Account is what the system says of a user.
type Account struct {
	Name, Home, Shell string
	UID, GID          uint32
	Groups            []uint32 // with GID; nil if they were not looked up
}
