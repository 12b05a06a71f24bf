// Package config merges settings from several origins, such as the TOML file and the environment. It checks the
// values and records the origin of each one.
//
// Start with Keys, the table of all settings, and with Merge.
package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"math"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// Settings holds the checked values of all settings. descriptions.txt describes each setting.
type Settings struct {
	Workers         int // -1 means auto: one per CPU
	MaxRetries      int64
	Timeout         time.Duration
	BackoffBase     float64
	BackoffStrategy string // exponential, linear or fixed
	BackoffMax      time.Duration
	BackoffJitter   float64
	JobRetryDelay   time.Duration
	KillAfter       time.Duration
	OutputGrace     time.Duration
	OutputLimit     int64
	// JobTmpdir is an absolute path. "" means a directory inside the directory of the runners.
	JobTmpdir string
	Priority  int64
	// PriorityRange limits the priorities that a user with the right "submit", but no stronger right, may set.
	// Such a priority may differ from the default by at most PriorityRange.
	PriorityRange         int64
	Shell                 string
	OnLost                string // retry, dead or hold
	Scheduling            string // aging, priority or fifo
	Aging                 string // time or enqueue: when a waiting job gains a point of priority
	AgingInterval         time.Duration
	HeartbeatInterval     time.Duration
	WorkerTimeout         time.Duration
	MaxPending            int64
	MaxPendingPerUser     int64
	MaxBytesPerUser       int64 // 0 means unlimited; negative means a limit that depends on the size of the disk
	MaxRunningPerUser     int   // 0 means unlimited
	MaxConnections        int
	MaxConnectionsPerUser int
	StopTimeout           time.Duration
	RetentionCompleted    time.Duration // 0 means forever, also for the next two fields and RetentionEvents
	RetentionCancelled    time.Duration
	RetentionDead         time.Duration
	RetentionMaxJobs      int64
	RetentionEvents       time.Duration
	RetentionOutputBytes  int64 // bytes; 0 means unlimited
	SettleDelay           time.Duration
	LogLevel              string
	LogFormat             string
	RunAs                 string // account that runs jobs: service, submitter or fixed:USER
	SocketMode            string // mode of the socket file, as an octal number
	SocketGroup           string // group of the socket file; "" means the group of the service
	AccessRead            string // names, "none" or "auto", as in the next three fields; see AccessNames
	AccessSubmit          string
	AccessOperate         string
	AccessAdmin           string
	Resources             string // "none", or a text that checkResources accepts; see ResourcesByName
	Hooks                 queue.HookCommands
	HooksUser             string // account that runs hooks; "" means the account of the service
	Webhooks              string // "none" or JSON; see WebhooksByName
	TracesEndpoint        string // URL of the collector of traces; "" means none
	WebListen             string // address of the web page; "" means no page
	WebAnonymous          string // right of visitors without a session: none or read
	WebMetrics            string // "true" if programs may read metrics without a session, else "false"
	WebHosts              string // host names, separated by spaces; see HostNames
	WebTLSCert            string
	WebTLSKey             string
	WebTLS                string // "none" or "proxy"; "proxy" means that a proxy handles TLS
	Store                 string // sqlite or a URL; see StoreURL
	StoreFile             string // file that contains the URL; "" means none
	StoreRoles            string // user of each database role; "" means none; see RoleUsers
	Node                  string // name of this node; "" means the name of the host
	NodeLabels            string // labels of this node; "" means none; see LabelsOfNode
	NodeLease             time.Duration
	OnPartition           string // stop or continue: what a node does when it cannot reach the store
}

// WorkerCount returns the number of workers that the setting requests.
func (s *Settings) WorkerCount() int {
	if s.Workers < 0 {
		return runtime.NumCPU()
	}
	return s.Workers
}

// RetryPolicy returns the delays between the attempts of a job.
func (s *Settings) RetryPolicy() queue.RetryPolicy {
	return queue.RetryPolicy{Base: s.BackoffBase, Strategy: queue.BackoffStrategy(s.BackoffStrategy), Max: s.BackoffMax,
		Jitter: s.BackoffJitter, RetryDelay: s.JobRetryDelay}
}

// JobDefaults returns the default values for job fields.
func (s *Settings) JobDefaults() queue.Defaults {
	return queue.Defaults{Priority: s.Priority, MaxRetries: s.MaxRetries, Timeout: s.Timeout, KillAfter: s.KillAfter,
		Shell: s.Shell, OnLost: queue.OnLost(s.OnLost), OutputLimit: s.OutputLimit}
}

// Order returns the settings that determine the order in which jobs run.
func (s *Settings) Order() queue.Order {
	return queue.Order{Scheduling: queue.Scheduling(s.Scheduling), AgingUnit: queue.AgingUnit(s.Aging),
		AgingInterval: s.AgingInterval}
}

// Key is one row of the table of settings.
type Key struct {
	Name    string
	Default string
	Secret  bool                    // only admins see the value
	Values  []string                // list of all valid values; nil if other values are valid too
	set     func(text string) error // checks a value and stores it in the Settings that keysOf received
	get     func() string           // returns the value in these Settings as text
}

// Keys returns the table of settings, in the order of the documentation.
func Keys() []Key { return keysOf(&Settings{}) }

// bindTo returns the row of the setting k in a table of settings that reads and writes s.
func (k *Key) bindTo(s *Settings) *Key {
	rows := keysOf(s)
	return &rows[slices.IndexFunc(rows, func(row Key) bool { return row.Name == k.Name })]
}

// descriptionText has a paragraph for each setting and for each [table] of the settings file. The first line of
// a paragraph is the name of the setting or table.
//
//go:embed descriptions.txt
var descriptionText string

// descriptions holds the descriptions of the settings and tables by name.
var descriptions = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	for paragraph := range strings.SplitSeq(descriptionText, "\n\n") {
		name, text, _ := strings.Cut(paragraph, "\n")
		texts[name] = strings.Join(strings.Fields(text), " ")
	}
	return texts
})

// Doc returns the description of the setting.
func (k *Key) Doc() string {
	text := descriptions()[k.Name]
	if k.IsPerNode() {
		text += "; can be set only in the settings file or the environment"
	}
	if k.NeedsRestart() {
		text += "; changes apply after a restart of the service"
	}
	return text
}

// keyAlias is another name for a setting. toSettingValue converts a value given under this name to a value of the
// setting, and toAliasValue converts it back.
type keyAlias struct {
	alias, key     string
	toSettingValue func(text string) (string, error)
	toAliasValue   func(text string) string
}

var keyAliases = []keyAlias{
	{"max_concurrent_jobs", "workers", func(t string) (string, error) { return t, nil },
		func(t string) string { return t }},
	{"default_max_tries", "max_retries", func(t string) (string, error) {
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil || n < 1 {
			return "", fmt.Errorf("%q is not a valid number of attempts; use a whole number, 1 or more", t)
		}
		return strconv.FormatInt(n-1, 10), nil
	}, func(t string) string {
		n, _ := strconv.ParseInt(t, 10, 64) // t is valid, because it is a value of the setting
		return strconv.FormatInt(n+1, 10)
	}},
	{"job_timeout", "timeout", func(t string) (string, error) {
		if ms, err := strconv.ParseInt(t, 10, 64); err == nil {
			return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64), nil
		}
		return t, nil
	}, func(t string) string {
		d, _ := queue.ParseDuration(t) // t is valid, because it is a value of the setting
		return strconv.FormatInt(d.Milliseconds(), 10)
	}},
}

// ValueForName converts the value of a setting to the form that belongs to name. name is the name of the
// setting or an alias, which may have another unit.
func ValueForName(name, value string) string {
	canonical := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for _, s := range keyAliases {
		if s.alias == canonical {
			return s.toAliasValue(value)
		}
	}
	return value
}

// Aliases returns the other names of a setting.
func (k *Key) Aliases() (names []string) {
	for _, s := range keyAliases {
		if s.key == k.Name {
			names = append(names, s.alias)
		}
	}
	return names
}

// FindKey returns the setting with the given name or alias, and its value. If name is an alias, FindKey
// converts valueText from the form of the alias, for example from milliseconds. It does not check the value.
func FindKey(name, valueText string) (*Key, string, error) {
	canonical := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	for _, k := range Keys() {
		if k.Name == canonical || withUnderscores(k.Name) == canonical {
			return &k, valueText, nil
		}
	}
	for _, s := range keyAliases {
		if s.alias == canonical {
			value, err := valueText, error(nil)
			if valueText != "" {
				value, err = s.toSettingValue(valueText)
			}
			if err != nil {
				return nil, "", queue.Invalid(name, "%s", err)
			}
			k, _, _ := FindKey(s.key, "")
			return k, value, nil
		}
	}
	if name == "" {
		return nil, "", queue.Invalid("key", "the name of the setting is empty; list all settings with: queuectl config list")
	}
	return nil, "", &queue.Error{Code: queue.CodeInvalid, Field: name,
		Message: "unknown setting" + cmp.Or(queue.DidYouMean(canonical, SettingNames()),
			"; list all settings with: queuectl config list")}
}

// withUnderscores returns the name of a setting with underscores, as in the names of environment variables.
func withUnderscores(name string) string { return strings.ReplaceAll(name, ".", "_") }

// SettingNames returns the names of all settings.
func SettingNames() (names []string) {
	for _, k := range Keys() {
		names = append(names, k.Name)
	}
	return names
}

// Check returns an error if the text is not a valid value of the setting k.
func (k *Key) Check(text string) error {
	if err := k.bindTo(&Settings{}).set(text); err != nil {
		return queue.Invalid(k.Name, "%s", err)
	}
	return nil
}

// ValueText returns the value of the setting k in s as text.
func (k *Key) ValueText(s *Settings) string { return k.bindTo(s).get() }

// newKey returns a setting whose value is stored in *target. parse checks a text and converts it to a value,
// and format converts a value to text.
func newKey[T any](name, defaultText string, target *T, parse func(text string) (T, error), format func(T) string) Key {
	return Key{Name: name, Default: defaultText, set: func(text string) error {
		value, err := parse(text)
		if err == nil {
			*target = value
		}
		return err
	}, get: func() string { return format(*target) }}
}

// textKey returns a setting that is stored as text.
func textKey(name, defaultText string, target *string, parse func(text string) (string, error)) Key {
	return newKey(name, defaultText, target, parse, func(text string) string { return text })
}

// acceptWord returns the setting k, changed so that it also accepts word as its text. For this text, it stores
// value in *target.
func acceptWord[T comparable](k Key, word string, value T, target *T) Key {
	set, get := k.set, k.get
	k.set = func(text string) error {
		if text == word {
			*target = value
			return nil
		}
		return set(text)
	}
	k.get = func() string {
		if *target == value {
			return word
		}
		return get()
	}
	return k
}

// parsedOrNoneKey returns a setting that is stored as text. Its default is "none", which is stored as "".
func parsedOrNoneKey(name string, target *string, parse func(text string) (string, error)) Key {
	return acceptWord(textKey(name, noneWord, target, parse), noneWord, "", target)
}

// visibleToAdmins returns the setting k, changed so that only admins may see its value.
func visibleToAdmins(k Key) Key {
	k.Secret = true
	return k
}

// parseWorkers parses a number of workers. It does not accept the word auto.
func parseWorkers(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 4096 {
		return 0, fmt.Errorf("%q is not a number of workers; use auto or a number from 0 to 4096", text)
	}
	return n, nil
}

func checkShell(text string) (string, error) {
	if len(strings.Fields(text)) == 0 || len(text) > 4096 || strings.ContainsRune(text, 0) {
		return "", fmt.Errorf("%q is not a valid shell; use a program with its options, like "+defaultShell, text)
	}
	return text, nil
}

func integerKey[N int | int64](name, defaultText string, minValue, maxValue N, target *N) Key {
	return newKey(name, defaultText, target, func(text string) (N, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(minValue) || n > int64(maxValue) {
			return 0, fmt.Errorf("%q is not a valid value; use a whole number from %d to %d", text, minValue, maxValue)
		}
		return N(n), nil
	}, func(n N) string { return fmt.Sprint(n) })
}

// numberKey returns a setting that is a number from minValue to maxValue. The number may have a fraction.
func numberKey(name, defaultText string, minValue, maxValue float64, target *float64) Key {
	return newKey(name, defaultText, target, func(text string) (float64, error) {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= minValue && n <= maxValue) {
			return 0, fmt.Errorf("%q is not a valid value; use a number from %g to %g", text,
				math.Round(minValue*1e9)/1e9, maxValue)
		}
		return n, nil
	}, func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) })
}

// durationKey returns a setting that is a duration of at least minDuration.
func durationKey(name, defaultText string, minDuration time.Duration, target *time.Duration) Key {
	return newKey(name, defaultText, target, func(text string) (time.Duration, error) {
		d, err := queue.ParseDuration(text)
		if err == nil && d < minDuration {
			err = fmt.Errorf("%q is too short; the minimum is %s", text, queue.FormatDuration(minDuration))
		}
		return d, err
	}, func(d time.Duration) string {
		if d == 0 {
			return "0"
		}
		return queue.FormatDuration(d)
	})
}

// durationOrNeverKey returns a setting that is a duration or "never". The value "never" is stored as 0.
func durationOrNeverKey(name, defaultText string, target *time.Duration) Key {
	return acceptWord(newKey(name, defaultText, target, func(text string) (time.Duration, error) {
		d, err := queue.ParseDuration(text)
		if err == nil && d < time.Second {
			err = fmt.Errorf("%q is too short; use 1s or more, or the word \"never\"", text)
		}
		return d, err
	}, queue.FormatDuration), "never", 0, target)
}

// These are the highest valid values of some settings.
const (
	maxOutputBytes      = 1 << 50 // for the settings that limit the total bytes of a user's or a queue's jobs
	maxConcurrencyLimit = 1 << 20 // for the settings that limit the number of connections or of running jobs
)

// sizeKey returns a setting that is a number of bytes, at most maxBytes.
func sizeKey(name, defaultText string, maxBytes int64, target *int64) Key {
	return newKey(name, defaultText, target, func(text string) (int64, error) {
		n, err := queue.ParseSize(text)
		if err == nil && n > maxBytes {
			err = fmt.Errorf("%q is too large; the maximum is %s", text, queue.FormatSize(maxBytes))
		}
		return n, err
	}, queue.FormatSize)
}

func choiceKey(name, defaultText string, target *string, values ...string) Key {
	k := textKey(name, defaultText, target, func(text string) (string, error) {
		if slices.Contains(values, text) {
			return text, nil
		}
		return "", fmt.Errorf("unknown value %q%s", text,
			cmp.Or(queue.DidYouMean(text, values), "; use one of "+strings.Join(values, ", ")))
	})
	k.Values = values
	return k
}

// textOrNoneKey returns a setting that is a text. The word "none" is stored as "".
func textOrNoneKey(name string, target *string, check func(string) error) Key {
	return parsedOrNoneKey(name, target, func(text string) (string, error) {
		switch {
		case text == "":
			return "", fmt.Errorf("must not be empty; to leave the setting unset, use the word none")
		case len(text) > 4096 || strings.ContainsAny(text, "\x00\n"):
			return "", fmt.Errorf("must be a single line of at most 4096 bytes")
		}
		return text, check(text)
	})
}

// must returns a value that was parsed from the text of a setting. It panics if err is not nil, which cannot
// happen because the text was checked when it was set.
func must[T any](value T, err error) T {
	if err != nil {
		panic("config: " + err.Error())
	}
	return value
}

// checkCollectorURL returns an error unless collectorURL is the URL of a collector of traces. The URL must
// not contain headers or credentials.
func checkCollectorURL(collectorURL string) error {
	u, err := url.Parse(collectorURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not a valid collector URL; write it like http://127.0.0.1:4318 or "+
			"https://otel.example.org/v1/traces", collectorURL)
	}
	return nil
}
