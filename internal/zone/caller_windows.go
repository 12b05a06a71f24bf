package zone

import "time"

// UnreadableTZ returns false, because programs on Windows ignore TZ and use the time zone of the machine.
func UnreadableTZ() (value string, isUnreadable bool) { return "", false }

func machineZone() (*time.Location, error) { return time.Local, nil }

// CallerZoneName returns LocalZoneName, because Windows does not use the zone names of the IANA database.
func CallerZoneName() (string, error) { return LocalZoneName, nil }
