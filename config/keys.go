// Package config merges settings from several origins, such as the TOML file and the environment. It checks the
// values and records the origin of each one.
//
// Start with AllSettings, the table of all settings, and with Merge.
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
	Workers          int // -1 means auto: one per CPU
	MaxRetries       int64
	JobTimeout       time.Duration
	BackoffBase      float64
	BackoffStrategy  string // exponential, linear or fixed
	BackoffMax       time.Duration
	BackoffJitter    float64
	JobRetryDelay    time.Duration
	KillAfter        time.Duration
	OutputGrace      time.Duration
	OutputLimitBytes int64
	// JobTmpdir is an absolute path. "" means a directory inside the directory of the runners.
	JobTmpdir       string
	DefaultPriority int64
	// SubmitterPriorityRange limits the priorities that a user with the right "submit", but no stronger right, may set.
	// Such a priority may differ from the default by at most SubmitterPriorityRange.
	SubmitterPriorityRange int64
	Shell                  string
	OnLost                 string // retry, dead or hold
	SchedulingOrder        string // aging, priority or fifo
	AgingBasis             string // what raises the priority of a waiting job: time, or enqueue (later jobs)
	AgingInterval          time.Duration
	HeartbeatInterval      time.Duration
	WorkerTimeout          time.Duration
	MaxPending             int64
	MaxPendingPerUser      int64
	MaxBytesPerUser        int64 // 0 means unlimited; negative means a limit that depends on the size of the disk
	MaxRunningPerUser      int   // 0 means unlimited
	MaxConnections         int
	MaxConnectionsPerUser  int
	StopTimeout            time.Duration
	RetentionCompleted     time.Duration // 0 means forever, also for RetentionCancelled, RetentionDead and RetentionEvents
	RetentionCancelled     time.Duration
	RetentionDead          time.Duration
	RetentionMaxJobs       int64
	RetentionEvents        time.Duration
	RetentionOutputBytes   int64 // bytes; 0 means unlimited
	SettleCommitDelay      time.Duration
	LogLevel               string
	LogFormat              string
	RunAs                  string // account that runs jobs: service, submitter or fixed:USER
	SocketMode             string // mode of the socket file, as an octal number
	SocketGroup            string // group of the socket file; "" means the group of the service
	AccountsWithRead       string // users and groups, "none" or "auto", as in the next three fields; see AccountsWithRight
	AccountsWithSubmit     string
	AccountsWithOperate    string
	AccountsWithAdmin      string
	Resources              string // "none", or a text that checkResources accepts; see ResourcesByName
	Hooks                  queue.HookCommands
	HooksUser              string // account that runs hooks; "" means the account of the service
	Webhooks               string // "none" or JSON; see WebhooksByName
	TracesEndpoint         string // URL of the collector of traces; "" means none
	WebListen              string // address on which the web page listens; "" means no page
	AnonymousWebRight      string // right of visitors without a session: none or read
	AnonymousWebMetrics    string // "true" if programs may read metrics without a session, else "false"
	WebHosts               string // host names, separated by spaces; see WebHostNames
	WebTLSCert             string
	WebTLSKey              string
	WebTLSMode             string // "none" or "proxy"; "proxy" means that a proxy handles TLS
	Store                  string // sqlite or a URL; see StoreURL
	StoreFile              string // file that contains the URL of the store; "" means none
	StoreRoleUsers         string // user of each database role; "" means none; see UsersByStoreRole
	NodeName               string // name of this node; "" means the name of the host
	NodeLabels             string // labels of this node; "" means none; see NodeLabelsByName
	NodeLease              time.Duration
	OnPartition            string // stop or continue: what a node does when it cannot reach the store
}

// WorkerCount returns the number of workers that the setting "workers" requests.
func (s *Settings) WorkerCount() int {
	if s.Workers < 0 {
		return runtime.NumCPU()
	}
	return s.Workers
}

// RetryPolicy returns the delays between the attempts of a job.
func (s *Settings) RetryPolicy() queue.RetryPolicy {
	return queue.RetryPolicy{BaseSeconds: s.BackoffBase, Strategy: queue.BackoffStrategy(s.BackoffStrategy),
		MaxDelay: s.BackoffMax, Jitter: s.BackoffJitter, FixedDelay: s.JobRetryDelay}
}

// JobDefaults returns the default values of the job fields that the settings determine.
func (s *Settings) JobDefaults() queue.JobDefaults {
	return queue.JobDefaults{Priority: s.DefaultPriority, MaxRetries: s.MaxRetries, Timeout: s.JobTimeout,
		KillAfter: s.KillAfter,
		Shell:     s.Shell, OnLost: queue.OnLost(s.OnLost), OutputLimit: s.OutputLimitBytes}
}

// JobOrder returns the settings that determine the order in which jobs run.
func (s *Settings) JobOrder() queue.RankPolicy {
	return queue.RankPolicy{Scheduling: queue.Scheduling(s.SchedulingOrder), AgingUnit: queue.AgingUnit(s.AgingBasis),
		AgingInterval: s.AgingInterval}
}

// Setting is one row of the table of settings.
type Setting struct {
	Name        string
	DefaultText string
	AdminOnly   bool                    // only admins see the value
	ValidValues []string                // list of all valid values; nil if other values are valid too
	setFromText func(text string) error // checks a value and stores it in the Settings that settingsBoundTo received
	getAsText   func() string           // returns the value in the Settings that settingsBoundTo received, as text
}

// AllSettings returns the table of settings, in the order of the documentation.
func AllSettings() []Setting { return settingsBoundTo(&Settings{}) }

// bindTo returns the row for the same setting as k, from a new table of settings that reads and writes s.
func (k *Setting) bindTo(s *Settings) *Setting {
	rows := settingsBoundTo(s)
	return &rows[slices.IndexFunc(rows, func(row Setting) bool { return row.Name == k.Name })]
}

// settingDescriptionsText has a paragraph for each setting and for each [table] of the settings file. The first line of
// a paragraph is the name of the setting or table.
//
//go:embed descriptions.txt
var settingDescriptionsText string

// descriptionsByName holds the descriptions of the settings and tables by name.
var descriptionsByName = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	for paragraph := range strings.SplitSeq(settingDescriptionsText, "\n\n") {
		name, text, _ := strings.Cut(paragraph, "\n")
		texts[name] = strings.Join(strings.Fields(text), " ")
	}
	return texts
})

// Description returns the description of the setting.
func (k *Setting) Description() string {
	text := descriptionsByName()[k.Name]
	if k.IsPerNode() {
		text += "; can be set only in the settings file or the environment"
	}
	if k.NeedsRestart() {
		text += "; changes apply after a restart of the service"
	}
	return text
}

// settingAlias is another name for a setting. toSettingValue converts a value given under this name to a value of the
// setting, and toAliasValue converts it back.
type settingAlias struct {
	name, settingName string
	toSettingValue    func(text string) (string, error)
	toAliasValue      func(text string) string
}

var settingAliases = []settingAlias{
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

// ValueForNameOrAlias converts the value of a setting to the form that belongs to nameOrAlias. nameOrAlias is the name
// of the setting or an alias. The form of an alias may have another unit.
func ValueForNameOrAlias(nameOrAlias, settingValue string) string {
	if s := findAlias(canonicalName(nameOrAlias)); s != nil {
		return s.toAliasValue(settingValue)
	}
	return settingValue
}

// canonicalName returns the name of a setting or an alias in lower case, with underscores instead of hyphens.
func canonicalName(nameOrAlias string) string {
	return strings.ToLower(strings.ReplaceAll(nameOrAlias, "-", "_"))
}

// findAlias returns the alias with a canonical name, or nil if there is no such alias.
func findAlias(canonicalName string) *settingAlias {
	for i := range settingAliases {
		if settingAliases[i].name == canonicalName {
			return &settingAliases[i]
		}
	}
	return nil
}

// Aliases returns the other names of a setting.
func (k *Setting) Aliases() (names []string) {
	for _, s := range settingAliases {
		if s.settingName == k.Name {
			names = append(names, s.name)
		}
	}
	return names
}

// FindSetting returns the setting with the given name or alias, and its value. If nameOrAlias is an alias, FindSetting
// converts valueText from the form of the alias, for example from milliseconds. It does not check the value.
func FindSetting(nameOrAlias, valueText string) (*Setting, string, error) {
	canonical := canonicalName(nameOrAlias)
	for _, k := range AllSettings() {
		if k.Name == canonical || envStyleName(k.Name) == canonical {
			return &k, valueText, nil
		}
	}
	if s := findAlias(canonical); s != nil {
		value, err := valueText, error(nil)
		if valueText != "" {
			value, err = s.toSettingValue(valueText)
		}
		if err != nil {
			return nil, "", queue.InvalidFieldError(nameOrAlias, "%s", err)
		}
		k, _, _ := FindSetting(s.settingName, "")
		return k, value, nil
	}
	if nameOrAlias == "" {
		return nil, "",
			queue.InvalidFieldError("key", "the name of the setting is empty; list all settings with: queuectl config list")
	}
	return nil, "", &queue.Error{Code: queue.CodeInvalid, Field: nameOrAlias,
		Message: "unknown setting" + cmp.Or(queue.DidYouMean(canonical, SettingNames()),
			"; list all settings with: queuectl config list")}
}

// envStyleName returns the name of a setting with underscores instead of dots, as in the names of environment
// variables.
func envStyleName(name string) string { return strings.ReplaceAll(name, ".", "_") }

// SettingNames returns the names of all settings.
func SettingNames() (names []string) {
	for _, k := range AllSettings() {
		names = append(names, k.Name)
	}
	return names
}

// CheckValue returns an error if valueText is not a valid value of the setting k.
func (k *Setting) CheckValue(valueText string) error {
	if err := k.bindTo(&Settings{}).setFromText(valueText); err != nil {
		return queue.InvalidFieldError(k.Name, "%s", err)
	}
	return nil
}

// ValueText returns the value of the setting k in s as text.
func (k *Setting) ValueText(s *Settings) string { return k.bindTo(s).getAsText() }

// newSetting returns a setting whose value is stored in *target. parse checks a text and converts it to a value,
// and format converts a value to text.
func newSetting[T any](name, defaultText string, target *T, parse func(text string) (T, error),
	format func(T) string) Setting {
	return Setting{Name: name, DefaultText: defaultText, setFromText: func(text string) error {
		value, err := parse(text)
		if err == nil {
			*target = value
		}
		return err
	}, getAsText: func() string { return format(*target) }}
}

// textSetting returns a setting that is stored as text.
func textSetting(name, defaultText string, target *string, parse func(text string) (string, error)) Setting {
	return newSetting(name, defaultText, target, parse, func(text string) string { return text })
}

// withAdditionalWord returns the setting k, changed so that it also accepts word as its text. For this text, it stores
// value in *target.
func withAdditionalWord[T comparable](k Setting, word string, value T, target *T) Setting {
	set, get := k.setFromText, k.getAsText
	k.setFromText = func(text string) error {
		if text == word {
			*target = value
			return nil
		}
		return set(text)
	}
	k.getAsText = func() string {
		if *target == value {
			return word
		}
		return get()
	}
	return k
}

// parsedOrNoneSetting returns a setting that is stored as text. Its default is "none", which is stored as "".
func parsedOrNoneSetting(name string, target *string, parse func(text string) (string, error)) Setting {
	return withAdditionalWord(textSetting(name, noneWord, target, parse), noneWord, "", target)
}

// visibleOnlyToAdmins returns the setting k, changed so that only admins may see its value.
func visibleOnlyToAdmins(k Setting) Setting {
	k.AdminOnly = true
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

func integerSetting[N int | int64](name, defaultText string, minValue, maxValue N, target *N) Setting {
	return newSetting(name, defaultText, target, func(text string) (N, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < int64(minValue) || n > int64(maxValue) {
			return 0, fmt.Errorf("%q is not a valid value; use a whole number from %d to %d", text, minValue, maxValue)
		}
		return N(n), nil
	}, func(n N) string { return fmt.Sprint(n) })
}

// floatSetting returns a setting that is a number from minValue to maxValue. The number may have a fraction.
func floatSetting(name, defaultText string, minValue, maxValue float64, target *float64) Setting {
	return newSetting(name, defaultText, target, func(text string) (float64, error) {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !(n >= minValue && n <= maxValue) {
			return 0, fmt.Errorf("%q is not a valid value; use a number from %g to %g", text,
				math.Round(minValue*1e9)/1e9, maxValue)
		}
		return n, nil
	}, func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) })
}

// durationSetting returns a setting that is a duration of at least minDuration.
func durationSetting(name, defaultText string, minDuration time.Duration, target *time.Duration) Setting {
	return newSetting(name, defaultText, target, func(text string) (time.Duration, error) {
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

// durationOrNeverSetting returns a setting that is a duration or "never". The value "never" is stored as 0.
func durationOrNeverSetting(name, defaultText string, target *time.Duration) Setting {
	return withAdditionalWord(newSetting(name, defaultText, target, func(text string) (time.Duration, error) {
		d, err := queue.ParseDuration(text)
		if err == nil && d < time.Second {
			err = fmt.Errorf("%q is too short; use 1s or more, or the word \"never\"", text)
		}
		return d, err
	}, queue.FormatDuration), "never", 0, target)
}

// These are the highest valid values of some settings.
const (
	highestByteLimit        = 1 << 50 // for the settings that limit the total bytes of a user's or a queue's jobs
	highestConcurrencyLimit = 1 << 20 // for the settings that limit the number of connections or of running jobs
)

// byteSizeSetting returns a setting that is a number of bytes, at most maxBytes.
func byteSizeSetting(name, defaultText string, maxBytes int64, target *int64) Setting {
	return newSetting(name, defaultText, target, func(text string) (int64, error) {
		n, err := queue.ParseSize(text)
		if err == nil && n > maxBytes {
			err = fmt.Errorf("%q is too large; the maximum is %s", text, queue.FormatSize(maxBytes))
		}
		return n, err
	}, queue.FormatSize)
}

func choiceSetting(name, defaultText string, target *string, validValues ...string) Setting {
	k := textSetting(name, defaultText, target, func(text string) (string, error) {
		if slices.Contains(validValues, text) {
			return text, nil
		}
		return "", fmt.Errorf("unknown value %q%s", text,
			cmp.Or(queue.DidYouMean(text, validValues), "; use one of "+strings.Join(validValues, ", ")))
	})
	k.ValidValues = validValues
	return k
}

// textOrNoneSetting returns a setting that is a text. The word "none" is stored as "".
func textOrNoneSetting(name string, target *string, check func(string) error) Setting {
	return parsedOrNoneSetting(name, target, func(text string) (string, error) {
		switch {
		case text == "":
			return "", fmt.Errorf("must not be empty; to leave the setting unset, use the word none")
		case len(text) > 4096 || strings.ContainsAny(text, "\x00\n"):
			return "", fmt.Errorf("must be a single line of at most 4096 bytes")
		}
		return text, check(text)
	})
}

// panicOnParseError returns a value that was parsed from the text of a setting. It panics if err is not nil, which
// cannot happen because the text was checked when it was set.
func panicOnParseError[T any](value T, err error) T {
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
