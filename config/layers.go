package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Origin is where a value comes from.
type Origin string

// The origins, the weakest first.
const (
	FromDefault Origin = "default"
	FromFile    Origin = "file"
	FromStored  Origin = "stored"
	FromEnv     Origin = "environment"
	FromFlag    Origin = "flag"
	FromRunning Origin = "running" // the count of workers, as a person set it last
)

// Layer is the values of one origin, by the settings' names.
type Layer struct {
	Origin Origin
	Values map[string]string
}

// Config is the checked settings and where each comes from.
type Config struct {
	Settings
	layers  []Layer // the weakest first
	waiting []Waiting
}

// Waiting is a setting with the value that it has from the next start on.
type Waiting struct {
	Name, Value string
	Until       Origin // of the value that holds until then
}

// Waiting lists the settings of which another value holds than the layers have.
func (c *Config) Waiting() []Waiting { return c.waiting }

// Merge checks layers, the weakest first, and lays them over the defaults. It keeps copies:
// the result may be read while the layers are changed.
func Merge(layers ...Layer) (Config, error) {
	c := Config{layers: slices.Clone(layers)}
	for i := range c.layers {
		c.layers[i].Values = maps.Clone(layers[i].Values)
	}
	var faults []error
	for i := range Keys() {
		k := &Keys()[i]
		text, origin := k.Default, FromDefault
		for _, l := range layers {
			if v, ok := l.Values[k.Name]; ok {
				text, origin = v, l.Origin
			}
		}
		if err := k.set(&c.Settings, text); err != nil {
			faults = append(faults, fmt.Errorf("%s (%s): %w", k.Name, origin, err))
		}
	}
	if len(faults) > 0 {
		return c, &queue.Error{Code: queue.CodeInvalid, Message: errors.Join(faults...).Error()}
	}
	return c, nil
}

// Origin is where the value of a setting that holds comes from.
func (c *Config) Origin(name string) Origin {
	for _, w := range c.waiting {
		if w.Name == name {
			return w.Until
		}
	}
	return c.Strongest(name)
}

// Strongest is the origin of the value that a setting has now, or from the next start on.
func (c *Config) Strongest(name string) Origin {
	origin := FromDefault
	for _, l := range c.layers {
		if _, ok := l.Values[name]; ok {
			origin = l.Origin
		}
	}
	return origin
}

// Hides lists the settings of one origin that a stronger one hides.
func (c *Config) Hides(weaker Origin) (names []string) {
	for _, l := range c.layers {
		if l.Origin != weaker {
			continue
		}
		for _, name := range Names() {
			if _, ok := l.Values[name]; ok && c.Strongest(name) != weaker {
				names = append(names, name)
			}
		}
	}
	return names
}

// Take sets a setting to a value of a settings file: text, a number, true or false or, of
// those in a table, a list of names. It is refused by its name.
func (l *Layer) Take(name string, value any) error {
	switch v := value.(type) {
	case string, int64, float64, bool:
	default:
		if _, _, err := Find(name, ""); err != nil {
			return err
		}
		list, ok := v.([]any)
		if !ok || !isList(name) {
			return queue.Invalid(name, "the value must be text, a number, true or false")
		}
		text, err := listText(list)
		if err != nil {
			return queue.Invalid(name, "%s", err)
		}
		value = text
	}
	k, text, err := Find(name, fmt.Sprint(value))
	if err != nil {
		return err
	}
	if _, twice := l.Values[k.Name]; twice {
		return queue.Invalid(name, `the setting %q is given twice, under two names; keep only one of them`, k.Name)
	}
	l.Values[k.Name] = text
	return k.Check(text)
}

// listText is a list of names as the setting's text has it.
func listText(list []any) (string, error) {
	if len(list) == 0 {
		return none, nil
	}
	var words []string
	for _, v := range list {
		word := fmt.Sprint(v)
		switch v.(type) {
		case string, int64:
		default:
			return "", fmt.Errorf("must be a list of names, like [\"alice\", \"@staff\"]")
		}
		if len(strings.Fields(word)) != 1 {
			return "", fmt.Errorf("%q is not a valid name; write a user as NAME and a group as @NAME, without spaces",
				word)
		}
		words = append(words, word)
	}
	return strings.Join(words, " "), nil
}

// ReadEnv takes the settings of an environment: QUEUECTL_ and a name in capitals.
func ReadEnv(environ []string) (Layer, error) {
	l := Layer{Origin: FromEnv, Values: map[string]string{}}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		bare, ours := strings.CutPrefix(name, "QUEUECTL_")
		if !ours {
			continue
		}
		k, text, err := Find(bare, value)
		if k == nil && err != nil && !isSpelling(bare) {
			continue // QUEUECTL_SOCKET and others are no settings
		}
		if err == nil {
			err = k.Check(text)
		}
		if err != nil {
			return l, queue.Errorf(queue.CodeInvalid, "environment variable %s: %v", name, err)
		}
		l.Values[k.Name] = text
	}
	return l, nil
}

func isSpelling(name string) bool {
	return slices.ContainsFunc(spellings, func(s spelling) bool { return strings.EqualFold(s.name, name) })
}
