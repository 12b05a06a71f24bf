package queue

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Constraint defines which values a field of a job, or a parameter of a method, accepts. The checks of values and the
// JSON Schema both use the same Constraint, so they always agree.
//
// For example, Constraint{Enum: []string{"retry", "dead"}} rejects "later" with the message `unknown value
// "later"; use retry or dead`, and the schema has {"enum": ["retry", "dead"]}.
type Constraint struct {
	NumberRange        *NumberRange // smallest and largest number, or duration in seconds
	Enum               []string     // accepted texts; nil means any
	TextFormat         *TextFormat  // format of a text
	EntryFormat        *TextFormat  // format of each entry of a list, or of each map value
	MapNameFormat      *TextFormat  // format of each name in a map
	ReservedMapNames   []string     // names that must not occur in a map
	MaxBytes           int          // size limit of a text, of each list entry, or of each map value; 0 means unlimited
	MaxMapNameBytes    int          // size limit of each name in a map; 0 means unlimited
	NotEmpty           bool         // a text, or the first entry of a list, must not be ""
	MinItems           int          // smallest number of entries in a list
	MaxItems           int          // largest number of entries in a list or a map; 0 means unlimited
	NoDuplicates       bool         // a list must not contain an entry twice
	ErrorMessageSuffix string       // text at the end of the error message about an invalid value
}

// NumberRange limits a number. Min and Max themselves are accepted.
type NumberRange struct {
	Min, Max     float64
	ExclusiveMin bool // Min itself is rejected
}

// TextFormat is a format of texts. Pattern is the regular expression for the JSON Schema. IsValid reports whether a
// text has the format. If CheckText is not nil, it is used instead of IsValid.
type TextFormat struct {
	Pattern     string
	IsValid     func(string) bool
	Description string // second part of the message "… is not …", like "an id: 1 to 128 letters"
	// CheckText returns an error that says what is wrong with a text. It is nil if IsValid is used.
	CheckText func(text string) error
	IsSecret  bool // messages must not repeat the text, which may be secret
}

// nameCharsText is the last part of the field Description of a format for names.
const nameCharsText = " characters from A-Z a-z 0-9 . _ @ / -, starting with a letter or digit"

// These are parts of the patterns of the formats below.
const (
	keyPattern          = `[A-Za-z0-9][A-Za-z0-9._@/-]{0,127}`
	demandAmountPattern = `0*([1-9][0-9]{0,3}|10000)` // a number from 1 to MaxDemandAmount
	pathPattern         = `(/|[A-Za-z]:[\\/])[^\x00]*`
)

// These are the formats of texts.
var (
	IDFormat = &TextFormat{Pattern: "^" + keyPattern + "$", IsValid: ValidID, Description: "a valid job id; use 1 to 128" +
		nameCharsText}
	// QueueNameFormat is the format of a queue's name.
	QueueNameFormat = &TextFormat{Pattern: `^[A-Za-z0-9][A-Za-z0-9._@/-]{0,63}$`, IsValid: ValidQueueName,
		Description: "a valid queue name; use 1 to 64" + nameCharsText}
	keyFormat = &TextFormat{Pattern: "^" + keyPattern + "$", IsValid: ValidID, Description: "a valid key; use 1 to 128" +
		nameCharsText}
	pathFormat = &TextFormat{Pattern: "^(" + pathPattern + ")?$", IsValid: validPath,
		Description: "an absolute path; use the full path"}
	// nonBlankFormat is the format of a text that does not consist only of white space.
	nonBlankFormat   = &TextFormat{Pattern: `^[^\x00]*[^\t-\r \x00][^\x00]*$`, IsValid: isNotBlank, Description: "text"}
	withoutNULFormat = &TextFormat{Pattern: `^[^\x00]*$`, IsValid: hasNoNUL, Description: "free of NUL bytes; remove them"}
	lockFormat       = &TextFormat{Pattern: "^@?" + keyPattern + "(:" + demandAmountPattern + ")?$", CheckText: checkLock}
	rateLimitFormat  = &TextFormat{Pattern: "^(@" + keyPattern + "|@?" + keyPattern + "=" + demandAmountPattern +
		"/[smhd])$", CheckText: checkRateLimit}
	nodeSelectorFormat = &TextFormat{Pattern: "^" + keyPattern + `(=[^\x00-\x1f\x7f-\x9f]*)?$`, IsValid: validNodeSelector,
		Description: "a node name or LABEL=VALUE; list the nodes with: queuectl node list"}
	dependencyFormat   = &TextFormat{Pattern: "^" + keyPattern + "(:(completed|dead|ended))?$", CheckText: checkDependency}
	variableNameFormat = &TextFormat{Pattern: `^[^=\x00]+$`, IsValid: validVariableName,
		Description: "a valid variable name; use one or more characters except ="}
	labelNameFormat    = &TextFormat{Pattern: `^[^\x00]+$`, CheckText: checkLabelName}
	resourceNameFormat = &TextFormat{Pattern: IDFormat.Pattern, IsValid: ValidID,
		Description: "a valid resource name; use 1 to 128" +
			nameCharsText}
	resourceAmountFormat = &TextFormat{Pattern: "^" + demandAmountPattern + "$", IsValid: validResourceAmount,
		Description: "a number of resource units; use 1 to 10000"}
	secretReferenceFormat = &TextFormat{Pattern: "^(" + pathPattern + "|" + credentialPrefix +
		"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254})$",
		IsValid: validSecretReference, IsSecret: true,
		Description: "an absolute path or credential:NAME; store the secret in a file and use its path"}
)

func hasNoNUL(s string) bool { return strings.IndexByte(s, 0) < 0 }

func isNotBlank(s string) bool { return hasNoNUL(s) && strings.Trim(s, " \t\n\v\f\r") != "" }

func validPath(s string) bool { return s == "" || isAbsolutePath(s) && hasNoNUL(s) }

func validNodeSelector(s string) bool { return validDemandKey(Demand{Kind: GateNode, GateKey: s}) }

func validVariableName(s string) bool { return s != "" && !strings.ContainsAny(s, "=\x00") }

func validResourceAmount(s string) bool {
	_, ok := parseDemandAmount(s)
	return ok
}

func checkLock(text string) error { return onlyError(ParseLockDemand(text)) }

func checkRateLimit(text string) error { return onlyError(ParseRateDemand(text)) }

func checkDependency(text string) error { return onlyError(ParseDependency(text)) }

// onlyError returns the second result of a call, the error, and drops the first result.
func onlyError[T any](_ T, err error) error { return err }

func checkLabelName(name string) error {
	if name == "" {
		return InvalidFieldError("labels", "a label has no name; write NAME=value")
	}
	if !hasNoNUL(name) {
		return InvalidFieldError("labels", "a label name must not contain a NUL byte")
	}
	return nil
}

// FieldConstraint returns the constraint of a job field. It returns nil for a field that accepts all values of its
// kind.
func FieldConstraint(fieldName string) *Constraint { return fieldConstraints()[fieldName] }

// fieldConstraints returns the constraints of job fields, by the name of the field. They are built at the first use. A
// program that only sends jobs does not need them, and is faster without them.
var fieldConstraints = sync.OnceValue(func() map[string]*Constraint {
	between := func(low, high float64, note string) *Constraint {
		return &Constraint{NumberRange: &NumberRange{Min: low, Max: high}, ErrorMessageSuffix: note}
	}
	oneOf := func(words ...string) *Constraint { return &Constraint{Enum: words} }
	codes := func(least int) *Constraint {
		return &Constraint{NumberRange: &NumberRange{Min: 0, Max: maxExitCode}, MinItems: least, MaxItems: MaxExitCodes}
	}
	hook := &Constraint{TextFormat: withoutNULFormat, MaxBytes: MaxHookCommandBytes}
	return map[string]*Constraint{
		"id":      {TextFormat: IDFormat},
		"command": {TextFormat: nonBlankFormat, MaxBytes: MaxCommandBytes},
		"argv": {EntryFormat: withoutNULFormat, MaxBytes: MaxCommandBytes, NotEmpty: true, MinItems: 1,
			MaxItems: MaxArgsEnvBytes, ErrorMessageSuffix: "; set it to the program to run"},
		"queue":                 {TextFormat: QueueNameFormat},
		"priority":              between(-MaxPriority, MaxPriority, ""),
		"max_retries":           between(0, MaxAttempts-1, ""),
		"max_attempts":          between(1, MaxAttempts, ""),
		"timeout_ms":            between(0, float64(MaxDuration.Milliseconds()), ""),
		"backoff_base":          {NumberRange: &NumberRange{Min: 0, Max: 1e9, ExclusiveMin: true}},
		"backoff_strategy":      oneOf(string(BackoffExponential), string(BackoffLinear), string(BackoffFixed)),
		"backoff_max":           {NumberRange: &NumberRange{Min: 0, Max: MaxDuration.Seconds(), ExclusiveMin: true}},
		"jitter":                between(0, 1, ""),
		"depends_on":            {EntryFormat: dependencyFormat, MaxItems: MaxDependencies, NoDuplicates: true},
		"lock":                  {TextFormat: lockFormat},
		"rate_limit":            {TextFormat: rateLimitFormat},
		"on":                    {TextFormat: nodeSelectorFormat, MaxBytes: maxNodeKeyBytes},
		"on_dependency_failure": oneOf(dependencyFailureNames...),
		"resources": {NumberRange: &NumberRange{Min: 1, Max: MaxDemandAmount}, EntryFormat: resourceAmountFormat,
			MapNameFormat: resourceNameFormat, MaxBytes: MaxLabelBytes, MaxItems: MaxDemands},
		"unique":      {TextFormat: keyFormat},
		"on_conflict": oneOf(conflictActionNames...),
		"env": {EntryFormat: withoutNULFormat, MapNameFormat: variableNameFormat, ReservedMapNames: queuectlVariables,
			MaxBytes:        MaxCommandBytes,
			MaxMapNameBytes: MaxCommandBytes, MaxItems: MaxObjectMembers},
		"env_secret": {EntryFormat: secretReferenceFormat, MapNameFormat: variableNameFormat,
			ReservedMapNames: queuectlVariables, MaxBytes: maxPathBytes, MaxMapNameBytes: MaxLabelBytes, MaxItems: MaxSecrets},
		"user":           {TextFormat: nonBlankFormat, MaxBytes: maxAccountNameBytes},
		"cwd":            {TextFormat: pathFormat, MaxBytes: maxPathBytes},
		"shell":          {TextFormat: nonBlankFormat, MaxBytes: maxPathBytes},
		"stdin":          {MaxBytes: MaxStdinBytes},
		"stdin_file":     {TextFormat: pathFormat, MaxBytes: maxPathBytes},
		"ok_codes":       codes(1),
		"no_retry_codes": codes(0),
		"defer_codes":    codes(0),
		"memory":         between(MinMemoryBytes, MaxMemoryBytes, `, or leave out field "memory" for no limit`),
		"cpus":           between(MinCPUs, MaxCPUs, `, or leave out field "cpus" for no limit`),
		"tasks":          between(1, MaxTasks, `, or leave out field "tasks" for the default`),
		"nice":           between(MinNice, MaxNice, ""),
		"nofile":         between(1, MaxOpenFilesPerProcess, `, or leave out field "nofile" for the default`),
		"on_lost":        oneOf(string(OnLostRetry), string(OnLostDead), string(OnLostHold)),
		"on_completed":   hook,
		"on_failed":      hook,
		"on_dead":        hook,
		"on_ended":       hook,
		"labels": {EntryFormat: withoutNULFormat, MapNameFormat: labelNameFormat, MaxBytes: MaxLabelBytes,
			MaxMapNameBytes: MaxLabelBytes, MaxItems: MaxLabels},
		"output_limit": between(0, MaxOutputLimitBytes, ""),
	}
})

// CheckNumber returns an error if the constraint does not accept the number.
func (c *Constraint) CheckNumber(field string, n float64) error {
	return c.checkRange(field, n, quantityWords{"a number", "small", "large", formatNumber})
}

// CheckDuration returns an error if the constraint does not accept the duration.
func (c *Constraint) CheckDuration(field string, d time.Duration) error {
	text := func(seconds float64) string {
		return FormatDuration(time.Duration(math.Round(seconds * float64(time.Second))))
	}
	return c.checkRange(field, d.Seconds(), quantityWords{"a duration", "short", "long", text})
}

// checkSize returns an error if the constraint does not accept a size of byteCount bytes.
func (c *Constraint) checkSize(field string, byteCount int64) error {
	text := func(n float64) string { return FormatSize(int64(n)) }
	return c.checkRange(field, float64(byteCount), quantityWords{"a size", "small", "large", text})
}

// quantityWords contains the words with which messages describe one kind of value, such as durations.
type quantityWords struct {
	valueNoun, lessWord, moreWord string               // such as "a duration", "short" and "long"
	formatValue                   func(float64) string // formats a value
}

// noUpperLimit is a maximum of a Range that means that there is no upper limit. Messages then mention only the minimum.
const noUpperLimit = 1e18

// checkRange returns an error if n is outside the range of the constraint. The message uses the words in q.
func (c *Constraint) checkRange(field string, n float64, q quantityWords) error {
	r := c.NumberRange
	if r == nil || n >= r.Min && n <= r.Max && !(r.ExclusiveMin && n == r.Min) {
		return nil
	}
	wrong := q.lessWord
	if n > r.Max {
		wrong = q.moreWord
	}
	give := "from " + q.formatValue(r.Min) + " to " + q.formatValue(r.Max)
	switch {
	case r.ExclusiveMin:
		give = "above " + q.formatValue(r.Min) + ", at most " + q.formatValue(r.Max)
	case r.Max >= noUpperLimit:
		give = "of " + q.formatValue(r.Min) + " or more"
	}
	return InvalidFieldError(field, "%s is too %s; use %s %s%s", q.formatValue(n), wrong, q.valueNoun, give,
		c.ErrorMessageSuffix)
}

// CheckText returns an error if the constraint does not accept the text.
func (c *Constraint) CheckText(field, text string) error {
	switch {
	case c.Enum != nil:
		return c.checkEnum(field, text)
	case c.NotEmpty && text == "":
		return InvalidFieldError(field, "must not be empty%s", c.ErrorMessageSuffix)
	}
	return checkTextFormat(field, text, c.TextFormat, c.MaxBytes)
}

func (c *Constraint) checkEnum(field, text string) error {
	if slices.Contains(c.Enum, text) {
		return nil
	}
	if near := DidYouMean(text, c.Enum); near != "" {
		return InvalidFieldError(field, "unknown value %q%s", ClipForMessage(text), near)
	}
	return InvalidFieldError(field, "unknown value %q; use %s", ClipForMessage(text), joinAlternatives(c.Enum))
}

// CheckEntryCount returns an error if the constraint does not accept a list or map of entryCount entries.
func (c *Constraint) CheckEntryCount(field string, entryCount int) error {
	switch {
	case entryCount < c.MinItems:
		return InvalidFieldError(field, "too few entries (%d); use %d or more", entryCount, c.MinItems)
	case c.MaxItems > 0 && entryCount > c.MaxItems:
		return InvalidFieldError(field, "too many entries (%d); the maximum is %d", entryCount, c.MaxItems)
	}
	return nil
}

// CheckEntry returns an error if the constraint does not accept a list entry or a map value.
func (c *Constraint) CheckEntry(field, text string) error {
	if c.Enum != nil {
		return c.checkEnum(field, text)
	}
	return checkTextFormat(field, text, c.EntryFormat, c.MaxBytes)
}

// checkMapEntry returns an error if the constraint does not accept a key and its value in a map.
func (c *Constraint) checkMapEntry(field, key, value string) error {
	if err := checkTextFormat(field, key, c.MapNameFormat, c.MaxMapNameBytes); err != nil {
		return err
	}
	if slices.Contains(c.ReservedMapNames, key) {
		return InvalidFieldError(field, "queuectl sets the variable %s itself; use another name", key)
	}
	switch err := checkTextFormat(field, value, c.EntryFormat, c.MaxBytes); {
	case c.MaxBytes > 0 && len(value) > c.MaxBytes:
		return InvalidFieldError(field, "the value of %q is too long (%d bytes); the maximum is %d bytes",
			ClipForMessage(key),
			len(value),
			c.MaxBytes)
	case err == nil || !hasNoNUL(value):
		return err
	case c.EntryFormat.IsSecret:
		return InvalidFieldError(field, "the value of variable %s is not %s", ClipForMessage(key), c.EntryFormat.Description)
	}
	return InvalidFieldError(field, "%s=%q is not %s", ClipForMessage(key), ClipForMessage(value),
		c.EntryFormat.Description)
}

// checkTextFormat returns an error if the text is longer than maxBytes, or does not have the format. If maxBytes is 0,
// it does not check the length. If format is nil, it does not check the format.
func checkTextFormat(field, text string, format *TextFormat, maxBytes int) error {
	switch {
	case maxBytes > 0 && len(text) > maxBytes:
		return InvalidFieldError(field, "too long (%d bytes); the maximum is %d bytes", len(text), maxBytes)
	case format == nil:
		return nil
	case format.CheckText != nil:
		return format.CheckText(text)
	case format.IsValid(text):
		return nil
	case !hasNoNUL(text):
		return InvalidFieldError(field, "must not contain a NUL byte")
	case format == nonBlankFormat:
		return InvalidFieldError(field, "must not be empty")
	}
	return InvalidFieldError(field, "%q is not %s", ClipForMessage(text), format.Description)
}

// joinAlternatives joins words to a text of the form "a, b or c".
func joinAlternatives(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// formatNumber formats a number without an exponent.
func formatNumber(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// checkFields adds to problems each field of the spec whose value violates the constraint of the field.
func (s *Spec) checkFields(problems *errorList) {
	fields := SpecFields()
	for i := range fields {
		f := &fields[i] // not a copy, because this runs for each job, and a Field is large
		if f.constraint == nil {
			continue
		}
		v := f.jsonValue(s)
		problems.add(f.checkValue(v))
		if members, ok := v.(map[string]string); ok {
			for name, value := range members {
				problems.add(f.constraint.checkMapEntry(f.Name, name, value))
			}
		}
	}
}

// checkValue returns an error if value, the value of the field, violates the field's constraint.
func (f *Field) checkValue(value any) error {
	c := f.constraint
	switch v := value.(type) {
	case int64:
		if f.Kind == KindSize {
			return c.checkSize(f.Name, v)
		}
		return c.CheckNumber(f.Name, float64(v))
	case float64:
		return c.CheckNumber(f.Name, v)
	case string:
		if f.Kind == KindDuration {
			if d, err := ParseDuration(v); err == nil {
				return c.CheckDuration(f.Name, d)
			}
		}
		return c.CheckText(f.Name, v)
	case []string:
		err := c.CheckEntryCount(f.Name, len(v))
		if c.NotEmpty && len(v) > 0 && v[0] == "" {
			err = InvalidFieldError(f.Name, "the first entry is empty%s", c.ErrorMessageSuffix)
		}
		for i := 0; err == nil && i < len(v); i++ {
			err = c.CheckEntry(f.Name, v[i])
		}
		return err
	case []int:
		err := c.CheckEntryCount(f.Name, len(v))
		for i := 0; err == nil && i < len(v); i++ {
			err = c.CheckNumber(f.Name, float64(v[i]))
		}
		return err
	case map[string]string:
		return c.CheckEntryCount(f.Name, len(v))
	}
	return nil
}
