package retry

import (
	"fmt"

	"redrive.dev/redrive/api/v1alpha1"
)

// Preset gives the strategies of a preset. They may be altered. The error says that there is no such preset.
func Preset(name v1alpha1.StrategyPreset) ([]v1alpha1.Strategy, error) {
	if name != v1alpha1.PresetHTTP {
		return nil, fmt.Errorf("there is no preset %q", name)
	}
	return []v1alpha1.Strategy{
		fails("redirect", `error.status >= 300 && error.status < 400 || error.status == 0 && error.message.matches('stopped after [0-9]+ redirects')`),
		fails("bad-address", `error.status == 0 && error.message.contains('unsupported protocol scheme')`),
		fails("unknown-ca", `error.class in ['UnknownCA', 'x509.UnknownAuthorityError']`),
		// 415 stays with the policy's own rule, which gives it the reason Undecodable.
		fails("rejected", `error.status >= 400 && error.status < 500 && !(error.status in [404, 408, 409, 415, 425, 429])`),
		fails("not-implemented", `error.status == 501`),
	}, nil
}

func fails(name, when string) v1alpha1.Strategy {
	return v1alpha1.Strategy{Name: name, When: when, Action: v1alpha1.ActionFail}
}
