package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

const dashboardFile = "config/grafana/redrive.json"

// dashboard is what is read here of a dashboard of Grafana. What is not named here is refused: the picture would not show it.
type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"`
	Refresh       string     `json:"refresh"`
	Time          any        `json:"time"`
	Templating    templating `json:"templating"`
	Panels        []panel    `json:"panels"`
}

type templating struct {
	List []variable `json:"list"`
}

type variable struct {
	Name       string `json:"name"`
	Label      string `json:"label"`
	Type       string `json:"type"`
	Datasource any    `json:"datasource"`
	Query      string `json:"query"`
	Refresh    int    `json:"refresh"`
	Multi      bool   `json:"multi"`
	IncludeAll bool   `json:"includeAll"`
	AllValue   string `json:"allValue"`
	Sort       int    `json:"sort"`
	Current    any    `json:"current"`
}

type panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Datasource  any      `json:"datasource"`
	GridPos     position `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit   string  `json:"unit"`
			Min    float64 `json:"min"`
			Custom struct {
				FillOpacity int    `json:"fillOpacity"`
				ShowPoints  string `json:"showPoints"`
				Stacking    struct {
					Mode string `json:"mode"`
				} `json:"stacking"`
			} `json:"custom"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Options any      `json:"options"`
	Targets []target `json:"targets"`
}

// position in Grafana's grid, which is 24 wide.
type position struct {
	X int `json:"x"`
	Y int `json:"y"`
	W int `json:"w"`
	H int `json:"h"`
}

type target struct {
	RefID        string `json:"refId"`
	Expr         string `json:"expr"`
	LegendFormat string `json:"legendFormat"`
}

func readDashboard() (*dashboard, error) {
	data, err := read(dashboardFile)
	if err != nil {
		return nil, err
	}
	d := &dashboard{}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(d); err != nil {
		return nil, fmt.Errorf("%s: %w", dashboardFile, err)
	}
	return d, nil
}

// expanded is a query with all namespaces and Transports, as Grafana sends it for "All".
func (d *dashboard) expanded(expr string, rate, interval time.Duration) string {
	pairs := make([]string, 0, 4+2*len(d.Templating.List))
	pairs = append(pairs, "$__rate_interval", rate.String(), "$__interval", interval.String())
	for _, v := range d.Templating.List {
		pairs = append(pairs, "$"+v.Name, v.AllValue)
	}
	return strings.NewReplacer(pairs...).Replace(expr)
}
