package zone

import "time"

// Unread returns false, because programs on Windows use the zone of the machine.
func Unread() (value string, unread bool) { return "", false }

func machine() (*time.Location, error) { return time.Local, nil }

// Caller returns Machine, because the names of zones on Windows are not those of the IANA database.
func Caller() (string, error) { return Machine, nil }
