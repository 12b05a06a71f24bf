package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// billOfMaterials is a software bill of materials in the CycloneDX 1.5 format.
type billOfMaterials struct {
	Format          string                  `json:"bomFormat"`
	SpecVersion     string                  `json:"specVersion"`
	DocumentVersion int                     `json:"version"`
	Metadata        bomMetadata             `json:"metadata"`
	Components      []bomComponent          `json:"components"`
	Dependencies    []componentDependencies `json:"dependencies"`
}

// bomMetadata names the component that the bill of materials describes, and the time at which the bill was made.
type bomMetadata struct {
	Timestamp          string       `json:"timestamp"`
	DescribedComponent bomComponent `json:"component"`
}

// bomComponent is a program, a module or the standard library.
type bomComponent struct {
	Type          string              `json:"type"`
	BOMRef        string              `json:"bom-ref"`
	Name          string              `json:"name"`
	Version       string              `json:"version"`
	PackageURL    string              `json:"purl"`
	Hashes        []componentHash     `json:"hashes,omitempty"`
	Licences      []componentLicence  `json:"licenses,omitempty"`
	Properties    []componentProperty `json:"properties,omitempty"`
	Subcomponents []bomComponent      `json:"components,omitempty"`
}

// componentHash is the checksum of a component.
type componentHash struct {
	Algorithm string `json:"alg"`
	HexDigest string `json:"content"`
}

type componentLicence struct {
	Licence struct {
		ID string `json:"id"` // SPDX identifier
	} `json:"license"`
}

type componentProperty struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// componentDependencies lists the components that the component ComponentRef contains.
type componentDependencies struct {
	ComponentRef  string   `json:"ref"`
	DependsOnRefs []string `json:"dependsOn"`
}

// writeBOM prints the bill of materials of all programs. It reads which modules are linked into a program from the
// program file, where the linker has stored this information. It lists Go and each linked module, with the module's
// checksum from go.sum and its licences. The arguments are VERSION DATE MODULES GOROOT and the programs.
func writeBOM(out io.Writer, args []string) error {
	version, date, modules, goroot, files := args[0], args[1], args[2], args[3], args[4:]
	b := billOfMaterials{Format: "CycloneDX", SpecVersion: "1.5", DocumentVersion: 1}
	root := newComponent("application", "queuectl", "github.com/queuectl/queuectl", version)
	root.Licences = spdxLicences("MIT")
	all := componentDependencies{ComponentRef: root.BOMRef}
	seen := map[string]bool{}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		p, err := programComponent(file, version, info)
		if err != nil {
			return err
		}
		on := componentDependencies{ComponentRef: p.BOMRef}
		parts, err := linkedComponents(info, modules, goroot)
		if err != nil {
			return err
		}
		for _, part := range parts {
			on.DependsOnRefs = append(on.DependsOnRefs, part.BOMRef)
			if !seen[part.BOMRef] {
				seen[part.BOMRef] = true
				b.Components = append(b.Components, part)
			}
		}
		root.Subcomponents = append(root.Subcomponents, p)
		all.DependsOnRefs = append(all.DependsOnRefs, p.BOMRef)
		b.Dependencies = append(b.Dependencies, on)
	}
	b.Metadata = bomMetadata{date, root}
	b.Dependencies = append([]componentDependencies{all}, b.Dependencies...)
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

// newComponent returns a component of the given type, without licences. importPath is the path of the component's Go
// package or module.
func newComponent(componentType, name, importPath, version string) bomComponent {
	purl := "pkg:golang/" + importPath + "@" + version
	return bomComponent{Type: componentType, BOMRef: purl, Name: name, Version: version, PackageURL: purl}
}

// programComponent returns the component for one of queuectl's programs.
func programComponent(programFile, version string, info *debug.BuildInfo) (bomComponent, error) {
	raw, err := os.ReadFile(programFile)
	if err != nil {
		return bomComponent{}, err
	}
	sum := sha256.Sum256(raw)
	name := strings.TrimSuffix(filepath.Base(programFile), ".exe")
	c := newComponent("application", name, info.Path, version)
	c.Licences = spdxLicences("MIT")
	c.Hashes = []componentHash{{"SHA-256", hex.EncodeToString(sum[:])}}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "-tags" {
			c.Properties = append(c.Properties, componentProperty{"go:" + strings.TrimPrefix(s.Key, "-"), s.Value})
		}
	}
	return c, nil
}

// linkedComponents returns the components for Go's standard library and for each module that is linked
// into a program.
func linkedComponents(info *debug.BuildInfo, moduleCache, goroot string) ([]bomComponent, error) {
	std := newComponent("library", "std", "std", strings.TrimPrefix(info.GoVersion, "go"))
	var err error
	if std.Licences, err = identifyLicences(goroot); err != nil {
		return nil, err
	}
	parts := []bomComponent{std}
	for _, m := range info.Deps {
		c := moduleComponent(m)
		if c.Licences, err = identifyLicences(filepath.Join(moduleCache,
			moduleCacheDir(moduleOrReplacement(m)))); err != nil {
			return nil, err
		}
		parts = append(parts, c)
	}
	return parts, nil
}

// identifyLicences returns the licences in the licence files of a directory. It returns an error for an unknown
// licence, because someone must read a new licence before a dependency with this licence is shipped.
func identifyLicences(dir string) ([]componentLicence, error) {
	text, err := licenceTexts(dir)
	if err != nil {
		return nil, err
	}
	ids := licenceIDsInText(text)
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s: unknown licence; add its wording to the table in bom.go", dir)
	}
	return spdxLicences(ids...), nil
}

// licenceIdentifyingSentences lists sentences that occur in the text of only one licence, with the SPDX identifier of
// the licence.
var licenceIdentifyingSentences = []struct{ id, sentence string }{
	{"Apache-2.0", "Apache License Version 2.0"},
	{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
	{"Zlib", "This software is provided 'as-is', without any express or implied warranty"},
	{"BSD-2-Clause", "Redistribution and use in source and binary forms"},
}

// licenceIDsInText returns the SPDX identifiers of the licences in a text.
func licenceIDsInText(text string) (ids []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, w := range licenceIdentifyingSentences {
		if strings.Contains(text, w.sentence) {
			ids = append(ids, w.id)
		}
	}
	// The third clause of the BSD licence forbids the use of names in endorsements.
	if i := slices.Index(ids, "BSD-2-Clause"); i >= 0 && strings.Contains(text, "used to endorse or promote products") {
		ids[i] = "BSD-3-Clause"
	}
	return ids
}

// spdxLicences returns the licences with these SPDX identifiers.
func spdxLicences(ids ...string) []componentLicence {
	list := make([]componentLicence, len(ids))
	for i, id := range ids {
		list[i].Licence.ID = id
	}
	return list
}

// moduleOrReplacement returns the module that is linked into the program: the module that replaces m in go.mod or, if
// none does, m.
func moduleOrReplacement(m *debug.Module) *debug.Module {
	if m.Replace != nil {
		return m.Replace
	}
	return m
}

// moduleComponent returns the component for a module, without its licences.
func moduleComponent(m *debug.Module) bomComponent {
	m = moduleOrReplacement(m)
	c := newComponent("library", m.Path, m.Path, m.Version)
	if m.Sum != "" {
		c.Properties = []componentProperty{{"go:sum", m.Sum}}
	}
	return c
}
