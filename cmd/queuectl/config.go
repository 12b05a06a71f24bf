package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
)

func configVerb(a *app) *cobra.Command {
	get := &cobra.Command{
		Use: "get [KEY]", ValidArgsFunction: completeKeys, Short: "Print a setting, or all", Args: atMostOne("a key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.configList(cmd)
			}
			return a.setting(cmd, false, func(c *control.Client) (control.ConfigValue, error) {
				v, err := c.ConfigGet(cmd.Context(), control.ConfigKey{Key: args[0]})
				if !a.structured() { // which has the setting's own name
					v.Value = config.Spelled(args[0], v.Value)
				}
				return v, err
			})
		},
	}
	set := &cobra.Command{
		Use: "set KEY VALUE", ValidArgsFunction: completeKeys, Short: "Store a setting", Args: exactly(2, "a key and a value"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.setting(cmd, true, func(c *control.Client) (control.ConfigValue, error) {
				return c.ConfigSet(cmd.Context(), control.ConfigSet{Key: args[0], Value: control.Scalar(args[1])})
			})
		},
	}
	unset := &cobra.Command{
		Use: "unset KEY", ValidArgsFunction: completeKeys, Short: "Remove a stored setting", Args: exactly(1, "a key"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.setting(cmd, true, func(c *control.Client) (control.ConfigValue, error) {
				return c.ConfigUnset(cmd.Context(), control.ConfigKey{Key: args[0]})
			})
		},
	}
	list := &cobra.Command{
		Use: "list", Short: "List all settings and where each comes from", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.configList(cmd) },
	}
	validate := &cobra.Command{
		Use: "validate [FILE]", Short: "Check a settings file", Args: atMostOne("a file"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.validate(cmd, args) },
	}
	return group("config", "The settings of the service", get, set, unset, list, validate)
}

// setting prints one setting; noted tells a person what the change means.
func (a *app) setting(_ *cobra.Command, noted bool, ask func(*control.Client) (control.ConfigValue, error)) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	v, err := ask(c)
	if err != nil {
		return err
	}
	if a.structured() {
		return a.printJSON(v)
	}
	if v.Note != "" {
		fmt.Fprintf(a.err, "queuectl: %s: %s\n", v.Key, v.Note)
	}
	if noted {
		a.say("%s is %s (%s)", v.Key, v.Value, v.Origin)
		return nil
	}
	return a.println(v.Value)
}

func (a *app) configList(cmd *cobra.Command) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := c.ConfigList(cmd.Context(), control.Nothing{})
	if err != nil {
		return err
	}
	if a.structured() {
		return printList(a, got.Settings)
	}
	var rows [][]string
	for _, v := range got.Settings {
		rows = append(rows, []string{v.Key, v.Origin, v.Value})
	}
	return a.table([]string{"KEY", "ORIGIN", "VALUE"}, rows)
}

// validate checks a file without a service; if one runs, it also names the keys
// that stored settings hide.
func (a *app) validate(cmd *cobra.Command, args []string) error {
	path, err := a.settingsFile(args)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if err := isFile("config validate", path); err != nil {
			return err
		}
	}
	file, err := config.ReadFile(path, true)
	if len(args) == 0 && errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(a.err, "queuectl: there is no %s; the defaults hold\n", path)
		return nil
	}
	if err != nil {
		return unreadable("config validate", path, err)
	}
	if _, err := config.Merge(file); err != nil {
		return err
	}
	if c, err := a.client(); err == nil {
		defer c.Close()
		got, err := c.ConfigList(cmd.Context(), control.Nothing{})
		if err != nil {
			return err
		}
		for _, v := range got.Settings {
			if _, in := file.Values[v.Key]; in && v.Origin != string(config.FromFile) && v.Origin != string(config.FromDefault) {
				fmt.Fprintf(a.err, "queuectl: %s: hidden by the %s value %s\n", v.Key, v.Origin, v.Value)
			}
		}
	}
	a.say("%s is right", path)
	return nil
}

func (a *app) settingsFile(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if a.dir != "" {
		_, err := a.ownFolder()
		return config.In(a.dir).File, err
	}
	p, err := config.User()
	return p.File, err
}
