package queue

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Constraint says which values a field of a job, or a parameter of a method, accepts. The check of a value and the
// JSON Schema that declares it are both made from the same Constraint, so they cannot differ.
//
// For example Constraint{Enum: []string{"retry", "dead"}} refuses "later" with the message `"later" is not retry or
// dead`, and the schema has {"enum": ["retry", "dead"]}.
type Constraint struct {
	Range    *Range   // of a number; of a duration, in seconds
	Enum     []string // the texts that are accepted; nil is any
	Text     *Form    // the form of a text
	Entries  *Form    // the form of each entry of a list, or of each value of a map
	MaxBytes int      // of a text, or of each entry of a list; 0 means unlimited
	NotEmpty bool     // of a text
	MinItems int      // entries of a list
	MaxItems int      // entries of a list or a map; 0 means unlimited
	Note     string   // what the message about a value outside the range, or an empty one, adds
}

// Range bounds a number, both ends included.
type Range struct {
	Min, Max float64
	Above    bool // Min itself is refused
}

// Form is how a text is written. Valid and Pattern, a regular expression of JSON Schema, accept the same texts.
type Form struct {
	Pattern string
	Valid   func(string) bool
	Is      string // what such a text is, after "is not"
}

const nameForm = " of A-Z a-z 0-9 . _ @ / -, beginning with a letter or digit"

// The forms of texts.
var (
	FormID = &Form{`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`, ValidID, "an id: 1 to 128" + nameForm}
	// FormQueue is the form of a queue's name.
	FormQueue = &Form{`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$`, ValidQueue, "the name of a queue: 1 to 64" + nameForm}
	formKey   = &Form{`^[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}$`, ValidID, "a key: 1 to 128" + nameForm}
	formPath  = &Form{`^(/[^\x00]*|[^\x00]:[\\/][^\x00]*|)$`, validPath, "an absolute path"}
	// formFilled is the form of a text that holds more than white space.
	formFilled = &Form{`^[^\x00]*[^\s\x00][^\x00]*$`, filled, "text"}
	formPart   = &Form{`^[^\x00]*$`, withoutNUL, "text without NUL"}
)

func withoutNUL(s string) bool { return strings.IndexByte(s, 0) < 0 }

func filled(s string) bool { return withoutNUL(s) && strings.TrimSpace(s) != "" }

func validPath(s string) bool { return s == "" || absolute(s) && withoutNUL(s) }

// ConstraintOf returns the constraint of a field of a job, nil if any value of its kind is accepted.
func ConstraintOf(field string) *Constraint { return constraints()[field] }

// constraints is made with the first use: a program that only sends jobs needs none of it.
var constraints = sync.OnceValue(func() map[string]*Constraint {
	between := func(low, high float64, note string) *Constraint {
		return &Constraint{Range: &Range{Min: low, Max: high}, Note: note}
	}
	oneOf := func(words ...string) *Constraint { return &Constraint{Enum: words} }
	codes := func(least int) *Constraint {
		return &Constraint{Range: &Range{Min: 0, Max: maxExitCode}, MinItems: least, MaxItems: MaxExitCodes}
	}
	hook := &Constraint{Text: formPart, MaxBytes: MaxHookLine}
	return map[string]*Constraint{
		"id":                    {Text: FormID},
		"command":               {Text: formFilled, MaxBytes: MaxCommand},
		"argv":                  {Entries: formPart, MaxBytes: MaxCommand, MinItems: 1, MaxItems: MaxArgsEnv},
		"queue":                 {Text: FormQueue},
		"priority":              between(-MaxPriority, MaxPriority, ""),
		"max_retries":           between(0, MaxAttempts-1, ""),
		"max_attempts":          between(1, MaxAttempts, ""),
		"timeout_ms":            between(0, float64(MaxDuration.Milliseconds()), ""),
		"backoff_base":          {Range: &Range{Min: 0, Max: 1e9, Above: true}},
		"backoff_strategy":      oneOf(string(Exponential), string(Linear), string(Fixed)),
		"backoff_max":           {Range: &Range{Min: 0, Max: MaxDuration.Seconds(), Above: true}},
		"jitter":                between(0, 1, ""),
		"depends_on":            {MaxItems: MaxDependencies},
		"on_dependency_failure": oneOf(otherwises...),
		"resources":             {MaxItems: MaxDemands},
		"unique":                {Text: formKey},
		"on_conflict":           oneOf(conflicts...),
		"env":                   {Entries: formPart, MaxItems: MaxMembers},
		"env_secret":            {Entries: formPart, MaxBytes: maxPath, MaxItems: MaxSecrets},
		"user":                  {Text: formFilled, MaxBytes: maxAccount},
		"cwd":                   {Text: formPath, MaxBytes: maxPath},
		"shell":                 {Text: formFilled, MaxBytes: maxPath},
		"stdin":                 {MaxBytes: MaxStdin},
		"stdin_file":            {Text: formPath, MaxBytes: maxPath},
		"ok_codes":              codes(1),
		"no_retry_codes":        codes(0),
		"defer_codes":           codes(0),
		"memory":                between(MinMemory, MaxMemory, "; leave it out for no limit"),
		"cpus":                  between(MinCPUs, MaxCPUs, "; leave it out for no limit"),
		"tasks":                 between(1, MaxTasks, "; leave it out for the default"),
		"nice":                  between(MinNice, MaxNice, ""),
		"nofile":                between(1, MaxNoFile, "; leave it out for the default"),
		"on_lost":               oneOf(string(OnLostRetry), string(OnLostDead), string(OnLostHold)),
		"on_completed":          hook,
		"on_failed":             hook,
		"on_dead":               hook,
		"on_ended":              hook,
		"labels":                {Entries: formPart, MaxItems: MaxLabels},
		"output_limit":          between(0, MaxOutput, ""),
	}
})

// CheckNumber refuses a number that the constraint does not accept.
func (c *Constraint) CheckNumber(field string, n float64) error {
	return c.checkRange(field, n, quantity{"a number", "small", "large", plain})
}

// CheckDuration refuses a duration that the constraint does not accept.
func (c *Constraint) CheckDuration(field string, d time.Duration) error {
	text := func(seconds float64) string {
		return FormatDuration(time.Duration(math.Round(seconds * float64(time.Second))))
	}
	return c.checkRange(field, d.Seconds(), quantity{"a duration", "short", "long", text})
}

// checkSize refuses a number of bytes that the constraint does not accept.
func (c *Constraint) checkSize(field string, n int64) error {
	text := func(n float64) string { return FormatSize(int64(n)) }
	return c.checkRange(field, float64(n), quantity{"a size", "small", "large", text})
}

// quantity is how messages write values of a kind.
type quantity struct {
	name, less, more string // "a duration", and "short" or "long" for one out of range
	text             func(float64) string
}

func (c *Constraint) checkRange(field string, n float64, q quantity) error {
	r := c.Range
	if r == nil || n >= r.Min && n <= r.Max && !(r.Above && n == r.Min) {
		return nil
	}
	wrong := q.less
	if n > r.Max {
		wrong = q.more
	}
	give := "from " + q.text(r.Min) + " to " + q.text(r.Max)
	switch {
	case r.Above:
		give = "above " + q.text(r.Min) + ", at most " + q.text(r.Max)
	case r.Max >= math.MaxInt64:
		give = "of " + q.text(r.Min) + " or more"
	}
	return Invalid(field, "%s is too %s; give %s %s%s", q.text(n), wrong, q.name, give, c.Note)
}

// CheckText refuses a text that the constraint does not accept.
func (c *Constraint) CheckText(field, text string) error {
	switch {
	case c.Enum != nil:
		return c.checkWord(field, text)
	case c.NotEmpty && text == "":
		return Invalid(field, "is empty%s", c.Note)
	}
	return checkForm(field, text, c.Text, c.MaxBytes)
}

func (c *Constraint) checkWord(field, text string) error {
	if slices.Contains(c.Enum, text) {
		return nil
	}
	if near := Nearest(text, c.Enum); near != "" {
		return Invalid(field, "%q is not known%s", Clip(text), near)
	}
	return Invalid(field, "%q is not known; give %s", Clip(text), alternatives(c.Enum))
}

// CheckCount refuses a list or a map of n entries that the constraint does not accept.
func (c *Constraint) CheckCount(field string, n int) error {
	switch {
	case n < c.MinItems:
		return Invalid(field, "has %d entries; give %d or more", n, c.MinItems)
	case c.MaxItems > 0 && n > c.MaxItems:
		return Invalid(field, "has %d entries; give at most %d", n, c.MaxItems)
	}
	return nil
}

// CheckEntry refuses an entry of a list, or a value of a map, that the constraint does not accept.
func (c *Constraint) CheckEntry(field, text string) error {
	if c.Enum != nil {
		return c.checkWord(field, text)
	}
	return checkForm(field, text, c.Entries, c.MaxBytes)
}

func checkForm(field, text string, form *Form, most int) error {
	switch {
	case most > 0 && len(text) > most:
		return Invalid(field, "is %d bytes long; give at most %d", len(text), most)
	case form == nil || form.Valid(text):
		return nil
	case !withoutNUL(text):
		return Invalid(field, "must not hold a NUL")
	case form == formFilled:
		return Invalid(field, "is empty; give a value")
	}
	return Invalid(field, "%q is not %s", Clip(text), form.Is)
}

// alternatives writes words as "a, b or c".
func alternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// plain writes a number without an exponent.
func plain(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// checkFields refuses values of given fields that their constraints do not accept.
func (s *Spec) checkFields(check checker) {
	for i := range fields {
		f := &fields[i]
		v := f.get(s)
		c := ConstraintOf(f.Name)
		if v == nil || c == nil {
			continue
		}
		if err := f.check(c, v); err != nil {
			check(false, f.Name, "%s", err.Message)
		}
	}
}

// check refuses a value of the field, as get returns it.
func (f *Field) check(c *Constraint, v any) *Error {
	var err error
	switch v := v.(type) {
	case int64:
		if f.Kind == KindSize {
			err = c.checkSize(f.Name, v)
		} else {
			err = c.CheckNumber(f.Name, float64(v))
		}
	case float64:
		err = c.CheckNumber(f.Name, v)
	case string:
		if d, parsed := ParseDuration(v); f.Kind == KindDuration && parsed == nil {
			err = c.CheckDuration(f.Name, d)
			break
		}
		err = c.CheckText(f.Name, v)
	case []string:
		err = c.CheckCount(f.Name, len(v))
		for i := 0; err == nil && i < len(v); i++ {
			err = c.CheckEntry(f.Name, v[i])
		}
	case []int:
		err = c.CheckCount(f.Name, len(v))
		for i := 0; err == nil && i < len(v); i++ {
			err = c.CheckNumber(f.Name, float64(v[i]))
		}
	case map[string]string:
		err = c.CheckCount(f.Name, len(v))
		for name := range v {
			if err == nil {
				err = c.CheckEntry(f.Name, v[name])
			}
		}
	}
	e, _ := err.(*Error)
	return e
}
