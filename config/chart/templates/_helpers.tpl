{{/* The reference of an image, of the context and its values: by digest where there is one, else by tag. */}}
{{- define "redrive.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The manager's arguments besides those that config/ gives it. */}}
{{- define "redrive.arguments" -}}
{{- with .Values.watchNamespaces }}
- --watch-namespaces={{ join "," . }}
{{- end }}
{{- if not .Values.metrics.secure }}
- --metrics-secure=false
{{- end }}
{{- range .Values.brokerAdmins }}
- --broker-admin={{ $.Release.Namespace }}/{{ . }}
{{- end }}
{{- if .Values.restrictTemplates }}
- --restrict-templates
{{- end }}
{{- with .Values.pollInterval }}
- --poll-interval={{ . }}
{{- end }}
{{- with .Values.image.workerPullPolicy }}
- --worker-image-pull-policy={{ . }}
{{- end }}
{{- with .Values.workerResources }}
{{- if hasKey . "requests" }}
- --worker-requests={{ include "redrive.resources" .requests }}
{{- end }}
{{- if .limits }}
- --worker-limits={{ include "redrive.resources" .limits }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Amounts of resources as a flag has them. */}}
{{- define "redrive.resources" -}}
{{- $list := list -}}
{{- range $name, $amount := . -}}
{{- $list = append $list (printf "%s=%v" $name $amount) -}}
{{- end -}}
{{ join "," $list }}
{{- end -}}

{{/* The port in the address of the metrics. */}}
{{- define "redrive.metricsPort" -}}
{{ regexFind "[0-9]+$" .Values.metrics.address }}
{{- end -}}

{{/* After names of the cluster's own objects: nothing, or what tells releases for some namespaces from each other. */}}
{{- define "redrive.suffix" -}}
{{- if .Values.watchNamespaces }}-{{ .Release.Namespace }}{{ end -}}
{{- end -}}
