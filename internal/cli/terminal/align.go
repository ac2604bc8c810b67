package terminal

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Align puts the cells of all rows below each other, each to the right of its column, as numbers are; the first of each row
// and those of the columns in left, counted from 0, stand to the left.
func Align(rows [][]string, left ...int) []string {
	var widths []int
	for _, cells := range rows {
		for i, cell := range cells {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for i, cells := range rows {
		var line strings.Builder
		for j, cell := range cells {
			padding := strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell))
			switch {
			case j == 0:
				line.WriteString(cell + padding)
			case slices.Contains(left, j):
				line.WriteString("  " + cell + padding)
			default:
				line.WriteString("  " + padding + cell)
			}
		}
		lines[i] = strings.TrimRight(line.String(), " ")
	}
	return lines
}
