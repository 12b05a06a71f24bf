package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

// bill is a bill of materials as CycloneDX 1.5 has it.
type bill struct {
	Format   string      `json:"bomFormat"`
	Spec     string      `json:"specVersion"`
	Version  int         `json:"version"`
	Metadata metadata    `json:"metadata"`
	Parts    []component `json:"components"`
	Depends  []depends   `json:"dependencies"`
}

type metadata struct {
	Time    string    `json:"timestamp"`
	Subject component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type depends struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

// bom prints the bill of materials of a binary from what the linker wrote into it:
// Go, and each module with the checksum that go.sum has.
func bom(out io.Writer, args []string) error {
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	subject := module(&info.Main)
	subject.Type, subject.Version = "application", args[1]
	subject.PURL = "pkg:golang/" + info.Main.Path + "@" + args[1]
	subject.Ref = subject.PURL
	subject.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "-tags" {
			subject.Properties = append(subject.Properties, property{"go:" + strings.TrimPrefix(s.Key, "-"), s.Value})
		}
	}
	gos := component{Type: "library", Name: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
	gos.PURL = "pkg:golang/std@" + gos.Version
	gos.Ref = gos.PURL
	b := bill{
		Format: "CycloneDX", Spec: "1.5", Version: 1,
		Metadata: metadata{args[2], subject},
		Parts:    []component{gos},
	}
	for _, m := range info.Deps {
		b.Parts = append(b.Parts, module(m))
	}
	all := depends{Ref: subject.Ref}
	for _, p := range b.Parts {
		all.On = append(all.On, p.Ref)
	}
	b.Depends = []depends{all}
	e := json.NewEncoder(out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

// linked is the module that is linked in for one: itself, or what replaces it.
func linked(m *debug.Module) *debug.Module {
	if m.Replace != nil {
		return m.Replace
	}
	return m
}

// module is the component that a module is.
func module(m *debug.Module) component {
	m = linked(m)
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	c := component{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
	if m.Sum != "" {
		c.Properties = []property{{"go:sum", m.Sum}}
	}
	return c
}
