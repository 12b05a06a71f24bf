package admin

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/config/tomlfile"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/cli/when"
)

// ConfigVerb returns the command "queuectl config". It is in queuectld, because the table of settings would
// slow down each start of queuectl.
func ConfigVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	get := cli.NewCommand("get [KEY]", "Print the value of one setting, or all settings",
		cli.AtMostOneArg("the name of a setting"), func(ctx context.Context, args []string) error {
			if len(args) == 0 {
				return a.printSettings(ctx)
			}
			if err := checkSettingName(args[0]); err != nil {
				return err
			}
			return cli.CallAndPrint(ctx, a.App, (*control.Client).ReadSetting,
				control.SettingNameParams{SettingName: args[0]},
				func(v control.ConfigValue) error {
					a.printSettingNote(v)
					// The user may have named an alias of the setting, and an alias may have another unit. So print the value in the
					// unit that belongs to the name. JSON output always has the unit of the setting.
					return a.Println(config.ValueForNameOrAlias(args[0], v.Value))
				})
		})
	set := cli.NewCommand("set KEY VALUE", "Change a setting permanently",
		cli.ExactArgs(2, "the name of a setting and a value"), func(ctx context.Context, args []string) error {
			return cli.CallAndPrint(ctx, a.App, (*control.Client).ChangeSetting,
				control.ConfigSetParams{SettingName: args[0], Value: control.SettingValue(normalizeSettingValue(args[0], args[1]))},
				a.printChangedSetting)
		})
	var p control.SettingNameParams
	unset := cli.NamedRequestVerb(app, "unset KEY", "Undo a change made with config set", "the name of a setting",
		&p.SettingName,
		(*control.Client).UnsetSetting, &p, a.printChangedSetting)
	get.ValidArgsFunction, set.ValidArgsFunction = completeSettingNames, completeSettingNames
	unset.ValidArgsFunction = completeSettingNames
	set.PreRunE = func(_ *cobra.Command, args []string) error { return checkSettingName(args[0]) }
	unset.PreRunE = set.PreRunE
	list := cli.NewCommand("list", "List all settings and where their values come from",
		cli.NoArgs, func(ctx context.Context, _ []string) error { return a.printSettings(ctx) })
	validate := cli.NewCommand("validate [FILE]", "Check a settings file", cli.AtMostOneArg("a settings file"),
		a.validateSettings)
	return cli.GroupCommand("config", "Show and change the settings of the service", get, set, unset, list, validate)
}

// checkSettingName returns an error if no setting has the given name or alias. The service makes the same check, but
// the user should get this error even if there is no queue yet.
func checkSettingName(nameOrAlias string) error {
	_, _, err := config.FindSetting(nameOrAlias, "")
	return err
}

// normalizeSettingValue converts the value of a setting to the form that the service accepts. It converts a duration in
// words to the short form, and returns other values unchanged.
func normalizeSettingValue(key, value string) string {
	k, text, err := config.FindSetting(key, value)
	if err != nil || k.CheckValue(text) == nil {
		return value
	}
	if short, ok := when.NormalizeDuration(value); ok && k.CheckValue(short) == nil {
		return short
	}
	return value // the value is invalid, so the service will report the error
}

// printSettingNote prints the note of a setting, if it has one.
func (a adminCommands) printSettingNote(v control.ConfigValue) {
	if v.Hint != "" {
		a.PrintMessage("%s: %s", v.SettingName, v.Hint)
	}
}

// printChangedSetting prints the new value of a setting.
func (a adminCommands) printChangedSetting(v control.ConfigValue) error {
	a.printSettingNote(v)
	origin := v.Origin
	if config.Origin(origin) == config.FromQueueStore {
		origin += " in the database"
	}
	return a.PrintTerminalMessage(`setting "%s" is %s (origin: %s)`, v.SettingName, v.Value, origin)
}

func (a adminCommands) printSettings(ctx context.Context) error {
	return a.WithClient(func(c *control.Client) error {
		got, err := c.ListSettings(ctx, control.NoParams{})
		if err != nil {
			return err
		}
		if a.WantsJSON() {
			return term.PrintJSONList(&a.Output, got.Settings)
		}
		var rows [][]string
		for _, v := range got.Settings {
			a.printSettingNote(v)
			rows = append(rows, []string{v.SettingName, v.Origin, v.Value})
		}
		return a.PrintTable([]string{"KEY", "ORIGIN", "VALUE"}, rows)
	})
}

// validateSettings checks a settings file without a service. If a service runs, validateSettings also names the
// settings of the file that have no effect because another origin, such as a stored setting, overrides them.
func (a adminCommands) validateSettings(ctx context.Context, args []string) error {
	path, err := a.settingsFilePath(args)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if err := files.CheckIsFile("config validate", path); err != nil {
			return err
		}
	}
	file, err := tomlfile.Read(path, true)
	if len(args) == 0 && errors.Is(err, os.ErrNotExist) {
		a.PrintMessage("settings file %s does not exist; the defaults apply", path)
		if a.WantsJSON() {
			return a.PrintJSON(map[string]any{"file": path, "valid": true})
		}
		return nil
	}
	if err != nil {
		return files.UnreadableError("config validate", path, err)
	}
	if _, err := config.Merge(file); err != nil {
		return err
	}
	if c, err := a.Client(); err == nil {
		defer c.Close()
		got, err := c.ListSettings(ctx, control.NoParams{})
		if err != nil {
			return err
		}
		for _, v := range got.Settings {
			if _, in := file.ValuesBySetting[v.SettingName]; in && v.Origin != string(config.FromFile) &&
				v.Origin != string(config.FromDefault) {
				a.PrintMessage("setting %q in the file has no effect; the value %s %s", v.SettingName, v.Value,
					overrideSourceText(v))
			}
		}
	}
	return a.PrintResult(map[string]any{"file": path, "valid": true}, "%s is valid", path)
}

// overrideSourceText describes the source of a value that overrides the settings file. If the value is a stored
// setting, the text also says how to remove it.
func overrideSourceText(v control.ConfigValue) string {
	switch config.Origin(v.Origin) {
	case config.FromQueueStore:
		return `stored in the database overrides it; remove that value with: queuectl config unset ` + v.SettingName
	case config.FromEnv:
		return "in the environment of the service overrides it"
	case config.FromFlag:
		return "on the command line of the service overrides it"
	case config.FromRunningService:
		return "from queuectl worker (start, stop or scale) overrides it until the service restarts"
	}
	return `from the origin "` + v.Origin + `", which this program does not know, overrides it; use the service's ` +
		"version of queuectl"
}

// settingsFilePath returns the settings file that args names. If args is empty, it returns the settings file of
// the chosen queue, or of the user's own service.
func (a adminCommands) settingsFilePath(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if a.ServiceDir != "" || a.SocketPath != "" {
		p, err := a.ServicePaths()
		return p.SettingsFile, err
	}
	p, err := config.UserPaths()
	return p.SettingsFile, err
}
