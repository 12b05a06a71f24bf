package zone

import "time"

// UnreadTZ returns false, because programs on Windows ignore TZ and use the zone of the machine.
func UnreadTZ() (value string, unread bool) { return "", false }

func machineZone() (*time.Location, error) { return time.Local, nil }

// CallerZone returns LocalName, because Windows does not use the zone names of the IANA database.
func CallerZone() (string, error) { return LocalName, nil }
