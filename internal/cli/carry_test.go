package cli

import "testing"

func TestCarrier_NamesCommandsThatCanBeCopied(t *testing.T) {
	for want, c := range map[string]carrier{
		"redrive replay resume async":                        {flags: &failedFlags{}},
		"redrive replay resume async -f '/tmp/it'\\''s/a b'": {flags: &failedFlags{from: "/tmp/it's/a b"}},
		"kubectl redrive replay resume async --context dev -n shop --management-url http://127.0.0.1:15672": {
			env: Environment{Program: "/usr/bin/" + pluginName},
			flags: &failedFlags{statusFlags: statusFlags{
				context: "dev", namespace: "shop", managementURL: "http://ann:secret@127.0.0.1:15672",
			}},
		},
	} {
		if got := c.command("replay", "resume", "async"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
