// Package zone loads time zones and maps wall-clock times to instants. All other packages use it, so
// that all of them interpret the name of a zone, and a time near a clock change, in the same way.
package zone

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// LocalZoneName is a name that always means the zone of the machine.
const LocalZoneName = "Local"

// Load returns the zone with a name from the IANA database, a zone in the form of POSIX.1-2024,
// section 8.3 (CET-1CEST,M3.5.0,M10.5.0/3), or LocalZoneName.
func Load(name string) (*time.Location, error) {
	if name == LocalZoneName {
		return machineZone()
	}
	if l, err := time.LoadLocation(name); err == nil {
		return l, nil
	}
	if l, ok := parsePOSIXZone(name); ok {
		return l, nil
	}
	return nil, fmt.Errorf("there is no time zone %q; write it like Europe/Berlin, UTC or CET-1CEST,M3.5.0,M10.5.0/3",
		queue.ClipForMessage(name))
}

// FromTZ returns the zone for a value of the environment variable TZ. The value is a zone in a form that Load accepts,
// or the path of a zone file. It may begin with a colon.
func FromTZ(tzValue string) (*time.Location, error) {
	name := strings.TrimPrefix(tzValue, ":")
	switch {
	case name == "":
		return time.UTC, nil
	case name == localtimeFile:
		return machineZone()
	case strings.HasPrefix(name, "/"):
		return readZoneFile(name, name)
	case name == LocalZoneName: // only queuectl gives Local a meaning, so it is not valid in TZ
		return nil, fmt.Errorf("there is no time zone %q; write it like Europe/Berlin or UTC", name)
	}
	return Load(name)
}

// localtimeFile is the zone file of the machine, or a link to a zone file.
const localtimeFile = "/etc/localtime"

// readZoneFile reads a zone file.
func readZoneFile(name, path string) (*time.Location, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, fmt.Errorf("%s is not a time zone file", path)
	}
	return l, nil
}

// parsePOSIXZone parses a zone in the form of POSIX. Package time has no function for this, but parses the same form in
// the last line of a zone file (RFC 9636, section 3.3). So parsePOSIXZone passes it a zone file with this line. For a
// zone with summer time but without a rule, package time uses M3.2.0,M11.1.0, as the C libraries do.
func parsePOSIXZone(name string) (*time.Location, bool) {
	if !isWellFormedPOSIXZone(name) {
		return nil, false
	}
	l, err := time.LoadLocationFromTZData(name, []byte(buildTZif(name)))
	if err != nil {
		return nil, false
	}
	short, _ := time.Unix(0, 0).In(l).Zone()
	return l, short != unparsedRuleAbbreviation
}

// unparsedRuleAbbreviation is the abbreviation of the zone in the file that buildTZif returns. If package time returns
// a time with this abbreviation, it could not parse the last line of the file.
const unparsedRuleAbbreviation = "?"

// buildTZif returns the content of a zone file whose only rule is in the last line.
func buildTZif(footerRule string) string {
	header := "TZif2" + strings.Repeat("\x00", 15)
	const zeroCount, countOne, countTwo = "\x00\x00\x00\x00", "\x00\x00\x00\x01", "\x00\x00\x00\x02"
	// The data of version 1 of the format is empty.
	return header + zeroCount + zeroCount + zeroCount + zeroCount + zeroCount + zeroCount +
		// The data of version 2 has one zone, whose name has two bytes.
		header + zeroCount + zeroCount + zeroCount + zeroCount + countOne + countTwo +
		// The zone has offset 0, no summer time, and abbreviation number 0.
		"\x00\x00\x00\x00" + "\x00" + "\x00" + unparsedRuleAbbreviation + "\x00" +
		"\n" + footerRule + "\n"
}

// isWellFormedPOSIXZone reports whether a zone may be passed to package time's parser. This parser accepts more than
// POSIX allows. So isWellFormedPOSIXZone checks the names, the hours of the offsets, which are at most 24, and the
// separator before the rule.
func isWellFormedPOSIXZone(zone string) bool {
	const name, offset = `(?:[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)`, `[+-]*(?:\d|[01]\d|2[0-4])(?::[-+:\d]*)?`
	const summerTime = name + `(?:` + offset + `)?(?:,[^\n;]*)?`
	// Compile the expression in the function. A package variable would link package regexp into queuectl.
	return regexp.MustCompile(`^` + name + offset + `(?:` + summerTime + `)?$`).MatchString(zone)
}
