package zone

import "time"

// Unread reports nothing: programs of Windows have the zone of the machine.
func Unread() (value string, unread bool) { return "", false }

func machine() (*time.Location, error) { return time.Local, nil }

// Caller returns the name of this process's zone: the machine's, for the names of Windows are not
// those of the IANA database.
func Caller() (string, error) { return Machine, nil }
