{{- define "airlock.selector" -}}
app.kubernetes.io/name: airlock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "airlock.labels" -}}
{{ include "airlock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "airlock.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{/* airlock.yaml: the operator's settings, and those that follow from what this chart makes. */}}
{{- define "airlock.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $_ := set $config "state_dir" "/var/lib/airlock/state" }}
{{- $_ := set $config "database_url" .Values.database.url }}
{{- $_ := set $config "database_password_file" "/run/secrets/airlock/database/password" }}
{{/* Snapshots in the Pod's own directory would be lost with it: a directory that cannot be made says so. */}}
{{- if not ($config.snapshots | default dict).bucket }}
{{- $_ := set $config "snapshots_dir" (ternary "/var/lib/airlock-snapshots" "/nonexistent/set-snapshots.claimName" (ne .Values.snapshots.claimName "")) }}
{{- end }}
{{- $_ := set $config "drain_s" .Values.drain.seconds }}
{{- $_ := set $config "http" (merge (dict "listen" "0.0.0.0:7480") ($config.http | default dict)) }}
{{- with .Values.tls }}
{{- if .secretName }}
{{- $tls := dict "certificate" "/run/secrets/airlock/tls/tls.crt" "key" "/run/secrets/airlock/tls/tls.key" }}
{{- if .clientCA }}{{ $_ := set $tls "client_ca" "/run/secrets/airlock/tls/ca.crt" }}{{ end }}
{{- $_ := set $config "tls" $tls }}
{{- else if .clientCA }}
{{- fail "tls.clientCA: client certificates need TLS: set tls.secretName" }}
{{- else if not .insecurePlaintext }}
{{- fail "tls.secretName: name a Secret with a certificate, or set tls.insecurePlaintext: true if a proxy or a mesh encrypts what reaches the gateways" }}
{{- end }}
{{- end }}
{{- if .Values.metrics.enabled }}
{{- $metrics := dict "metrics_listen" (printf "0.0.0.0:%v" .Values.metrics.port) "metrics_beyond_loopback" true }}
{{- $_ := set $config "telemetry" (merge $metrics ($config.telemetry | default dict)) }}
{{- end }}
{{- $sandbox := $config.sandbox | default dict }}
{{- $kubernetes := dict "namespace" .Values.sandboxes.namespace "namespace_per_tenant" .Values.sandboxes.namespacePerTenant }}
{{- $_ := set $kubernetes "gateway_namespace" .Release.Namespace }}
{{- $_ := set $kubernetes "gateway_selector" (include "airlock.selector" . | fromYaml) }}
{{- with .Values.imagePullSecrets }}
{{- $names := list }}
{{- range . }}{{ $names = append $names .name }}{{ end }}
{{- $_ := set $kubernetes "image_pull_secrets" $names }}
{{- end }}
{{- $_ := set $sandbox "engine" "kubernetes" }}
{{- $_ := set $sandbox "kubernetes" (merge $kubernetes ($sandbox.kubernetes | default dict)) }}
{{- $_ := set $config "sandbox" $sandbox }}
{{- toYaml $config }}
{{- end }}
