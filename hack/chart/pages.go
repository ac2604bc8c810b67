package main

// page is what becomes of one object.
type page struct {
	// object is its kind and name, and source the folder that it is from.
	object, source string
	// file is the template that it goes to, after what goes there already.
	file string
	// under wraps it into a condition.
	under func(text string) string
	edits []edit
}

// Conditions of templates.
const (
	onlySome       = "$.Values.watchNamespaces"
	metricsOn      = `ne (toString $.Values.metrics.address) "0"`
	scopedUsers    = "$.Values.scopedUsers.enabled"
	metricsSecured = "and (" + metricsOn + ") $.Values.metrics.secure"
)

// pages are in the order in which they come to their files.
func pages() []page {
	return []page{
		{
			object: "CustomResourceDefinition retrypolicies.redrive.dev", source: everywhere, file: "crd-retrypolicies.yaml",
			under: given("$.Values.crds.enabled"), edits: kept(),
		},
		{
			object: "CustomResourceDefinition transports.redrive.dev", source: everywhere, file: "crd-transports.yaml",
			under: given("$.Values.crds.enabled"), edits: kept(),
		},
		{object: "ServiceAccount redrive-manager", source: everywhere, file: "serviceaccount.yaml", under: always},
		{object: "ClusterRole redrive-manager", source: everywhere, file: "role.yaml", under: given("not " + onlySome)},
		{object: "ClusterRoleBinding redrive-manager", source: everywhere, file: "role.yaml", under: given("not " + onlySome)},
		{object: "Role redrive-manager", source: watched, file: "role.yaml", under: forEachNamespace, edits: inEachNamespace()},
		{object: "RoleBinding redrive-manager", source: watched, file: "role.yaml", under: forEachNamespace, edits: inEachNamespace()},
		{
			object: "ClusterRole redrive-scoped-users", source: scoped, file: "scoped-users.yaml",
			under: given(scopedUsers), edits: ofRelease("redrive-scoped-users"),
		},
		{
			object: "ClusterRoleBinding redrive-scoped-users", source: scoped, file: "scoped-users.yaml",
			under: given("and (not " + onlySome + ") " + scopedUsers), edits: ofRelease("redrive-scoped-users"),
		},
		{
			object: "RoleBinding redrive-scoped-users", source: scopedIn, file: "scoped-users.yaml",
			under: func(text string) string { return given(scopedUsers)(forEachNamespace(text)) },
			edits: append(ofRelease("redrive-scoped-users"), inEachNamespace()...),
		},
		{object: "ClusterRole redrive-identity", source: watched, file: "identity.yaml", under: given(onlySome), edits: ofRelease("redrive-identity")},
		{
			object: "ClusterRoleBinding redrive-identity", source: watched, file: "identity.yaml",
			under: given(onlySome), edits: ofRelease("redrive-identity"),
		},
		{object: "Role redrive-leader-election", source: everywhere, file: "leader-election.yaml", under: always},
		{object: "RoleBinding redrive-leader-election", source: everywhere, file: "leader-election.yaml", under: always},
		{
			object: "ClusterRole redrive-metrics-auth", source: everywhere, file: "metrics-role.yaml",
			under: given(metricsSecured), edits: ofRelease("redrive-metrics-auth"),
		},
		{
			object: "ClusterRoleBinding redrive-metrics-auth", source: everywhere, file: "metrics-role.yaml",
			under: given(metricsSecured), edits: ofRelease("redrive-metrics-auth"),
		},
		{
			object: "ClusterRole redrive-metrics-reader", source: everywhere, file: "metrics-role.yaml",
			under: given(metricsSecured), edits: ofRelease("redrive-metrics-reader"),
		},
		{
			object: "ClusterRole redrive-view", source: everywhere, file: "aggregated-roles.yaml",
			under: given("and (not " + onlySome + ") $.Values.aggregatedRoles.enabled"),
		},
		{
			object: "ClusterRole redrive-edit", source: everywhere, file: "aggregated-roles.yaml",
			under: given("and (not " + onlySome + ") $.Values.aggregatedRoles.enabled"),
		},
		{object: "Service redrive-manager-metrics", source: everywhere, file: "metrics-service.yaml", under: given(metricsOn), edits: []edit{
			replace("port: 8443", `port: {{ include "redrive.metricsPort" $ }}`),
		}},
		{object: "Service redrive-manager-scale", source: everywhere, file: "scale-service.yaml", under: always},
		{object: "Deployment redrive-manager", source: everywhere, file: "deployment.yaml", under: always, edits: deployment()},
		{object: "PodDisruptionBudget redrive-manager", source: everywhere, file: "disruption-budget.yaml", under: always},
		{object: "NetworkPolicy redrive-manager-ingress", source: everywhere, file: "networkpolicy.yaml", under: always, edits: []edit{
			when(metricsOn, "    - port: metrics\n      protocol: TCP"),
		}},
		{
			object: "ServiceMonitor redrive-manager", source: monitored, file: "monitoring.yaml",
			under: given(scraped("serviceMonitor")), edits: managerMonitor(),
		},
		{
			object: "PodMonitor redrive-workers", source: monitored, file: "monitoring.yaml",
			under: given("$.Values.metrics.podMonitor.enabled"), edits: workersMonitor(),
		},
		{
			object: "PrometheusRule redrive", source: monitored, file: "monitoring.yaml",
			under: given("$.Values.metrics.rules.enabled"), edits: []edit{labelled("rules")},
		},
	}
}

// scraped needs metrics to scrape.
func scraped(value string) string {
	return "and (" + metricsOn + ") $.Values.metrics." + value + ".enabled"
}

// labelled adds the labels by which Prometheus finds an object.
func labelled(value string) edit {
	return after("    app.kubernetes.io/part-of: redrive",
		"{{- with $.Values.metrics."+value+".labels }}",
		"    {{- toYaml . | nindent 4 }}",
		"{{- end }}")
}

func managerMonitor() []edit {
	return []edit{
		labelled("serviceMonitor"),
		replace("    - redrive-system\n", "    - {{ $.Release.Namespace }}\n"),
		replace("  - bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token\n    honorLabels: true\n",
			"  - honorLabels: true\n    bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token\n"),
		when("$.Values.metrics.secure", "    bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"),
		when("$.Values.metrics.secure", "    scheme: https\n    tlsConfig:\n      insecureSkipVerify: true"),
	}
}

func workersMonitor() []edit {
	return []edit{
		labelled("podMonitor"),
		replace("    any: true\n", "{{- with "+onlySome+" }}\n    matchNames: {{- toYaml . | nindent 4 }}\n{{- else }}\n    any: true\n{{- end }}\n"),
	}
}

// everyPage is done to all objects.
func everyPage() []edit {
	return []edit{replaceAll("namespace: redrive-system", "namespace: {{ $.Release.Namespace }}")}
}

func always(text string) string { return "---\n" + text }

func given(condition string) func(string) string {
	return func(text string) string { return "{{- if " + condition + " }}\n---\n" + text + "{{- end }}\n" }
}

func forEachNamespace(text string) string {
	return "{{- range " + onlySome + " }}\n---\n" + text + "{{- end }}\n"
}

func inEachNamespace() []edit {
	return []edit{replace("namespace: shop", "namespace: {{ . }}")}
}

// ofRelease tells objects of the cluster apart where there are several releases, each for namespaces of its own.
func ofRelease(name string) []edit {
	return []edit{replaceAll("name: "+name+"\n", "name: "+name+"{{ include \"redrive.suffix\" $ }}\n")}
}

// kept lets the definitions, and with them all Transports, outlive the release.
func kept() []edit {
	return []edit{after("  annotations:",
		"{{- if $.Values.crds.keep }}",
		"    helm.sh/resource-policy: keep",
		"{{- end }}")}
}

func deployment() []edit {
	return []edit{
		replace("  replicas: 2\n", "  replicas: {{ $.Values.replicas }}\n"),
		orElse("$.Values.affinity", "      affinity:"),
		replace("--metrics-bind-address=:8443", "--metrics-bind-address={{ $.Values.metrics.address }}"),
		replace("redrive-manager-scale.redrive-system.svc", "redrive-manager-scale.{{ $.Release.Namespace }}.svc"),
		replace("--deny-broker-networks=0.0.0.0/8,127.0.0.0/8,169.254.0.0/16,::/127,fe80::/10,fd00:ec2::254/128,"+
			"100.100.100.200/32,168.63.129.16/32,192.0.0.192/32,fd20:ce::254/128,fd00:42::42/128,64:ff9b:1::/48",
			`--deny-broker-networks={{ join "," $.Values.denyBrokerNetworks }}`),
		after(`        - --deny-broker-networks={{ join "," $.Values.denyBrokerNetworks }}`, `{{- include "redrive.arguments" $ | nindent 8 }}`),
		replace("value: redrive-worker:latest", `value: {{ include "redrive.image" (list $ $.Values.image.worker) }}`),
		replace("image: redrive-manager:latest", `image: {{ include "redrive.image" (list $ $.Values.image.manager) }}`),
		replace("imagePullPolicy: IfNotPresent", "imagePullPolicy: {{ $.Values.image.pullPolicy }}"),
		when(metricsOn, "        - containerPort: 8443\n          name: metrics"),
		replace("containerPort: 8443", `containerPort: {{ include "redrive.metricsPort" $ }}`),
		orElse("$.Values.resources", "        resources:"),
		replace("value: 90MiB", "value: {{ $.Values.goMemoryLimit }}"),
		before("      securityContext:",
			"{{- with $.Values.imagePullSecrets }}",
			"      imagePullSecrets: {{- toYaml . | nindent 6 }}",
			"{{- end }}",
			"{{- with $.Values.nodeSelector }}",
			"      nodeSelector: {{- toYaml . | nindent 8 }}",
			"{{- end }}"),
		after("      terminationGracePeriodSeconds: 30",
			"{{- with $.Values.tolerations }}",
			"      tolerations: {{- toYaml . | nindent 6 }}",
			"{{- end }}"),
	}
}
