{{- define "pando.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pando.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pando.labels" -}}
{{ include "pando.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "pando.secret" -}}
{{- .Values.auth.existingSecret | default (include "pando.fullname" .) -}}
{{- end -}}

{{- define "pando.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- /* The addresses of a set's members, with commas between. Argument: root, part (of the name), members. */ -}}
{{- define "pando.hosts" -}}
{{- $service := printf "%s-%s" (include "pando.fullname" .root) .part -}}
{{- $hosts := list -}}
{{- range $n := until (int .members) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s.%s.svc.%s:27017" $service $n $service $.root.Release.Namespace $.root.Values.clusterDomain) -}}
{{- end -}}
{{- join "," $hosts -}}
{{- end -}}

{{- /* Probes. Where connections must be encrypted, only the port is looked at: pando-ask speaks plainly. */ -}}
{{- define "pando.probe" -}}
{{- if and .Values.tls.secretName (eq .Values.tls.mode "requireTLS") -}}
tcpSocket:
  port: mongodb
{{- else -}}
exec:
  command: ["pando-ask", "ping"]
{{- end }}
timeoutSeconds: 5
periodSeconds: 10
{{- end -}}

{{- /* What every container has in common: who it runs as, what it mounts, what it is told. Argument: root, role, set, hosts. */ -}}
{{- define "pando.container" -}}
image: {{ include "pando.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: ["ALL"]
ports:
  - name: mongodb
    containerPort: 27017
{{- if .root.Values.metrics.enabled }}
  - name: metrics
    containerPort: {{ .root.Values.metrics.port }}
{{- end }}
startupProbe:
{{ include "pando.probe" .root | indent 2 }}
  # A start replays what the engine had not flushed.
  failureThreshold: 180
readinessProbe:
{{ include "pando.probe" .root | indent 2 }}
livenessProbe:
{{ include "pando.probe" .root | indent 2 }}
  failureThreshold: 12
env:
  - name: PANDO_ROLE
    value: {{ .role }}
  - name: PANDO_SET
    value: {{ .set | quote }}
  - name: PANDO_HOSTS
    value: {{ .hosts | quote }}
  - name: PANDO_SHARDS
    value: {{ .shards | default "" | quote }}
  - name: PANDO_TLS_MODE
    value: {{ ternary .root.Values.tls.mode "disabled" (ne .root.Values.tls.secretName "") }}
  - name: PANDO_METRICS
    value: {{ ternary (printf "0.0.0.0:%d" (int .root.Values.metrics.port)) "" .root.Values.metrics.enabled | quote }}
  - name: PANDO_ROOT_USER
    value: {{ .root.Values.auth.rootUser | quote }}
{{- end -}}

{{- define "pando.mounts" -}}
- {name: scripts, mountPath: /opt/pando}
- {name: secrets, mountPath: /opt/secrets, readOnly: true}
- {name: own, mountPath: /run/pando}
- {name: own, mountPath: /tmp}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /opt/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "pando.volumes" -}}
- name: scripts
  configMap:
    name: {{ include "pando.fullname" . }}
- name: secrets
  secret:
    secretName: {{ include "pando.secret" . }}
# The key file has to be its owner's alone, which a mounted secret is not.
- name: own
  emptyDir:
    medium: Memory
    sizeLimit: 16Mi
{{- if .Values.tls.secretName }}
- name: tls
  secret:
    secretName: {{ .Values.tls.secretName }}
{{- end }}
{{- end -}}

{{- /* What pods have in common. Argument: root, component. */ -}}
{{- define "pando.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . | indent 2 }}
{{- end }}
automountServiceAccountToken: false
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
securityContext:
  runAsNonRoot: true
  runAsUser: 999
  runAsGroup: 999
  fsGroup: 999
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
affinity:
{{- if .root.Values.affinity }}
{{ toYaml .root.Values.affinity | indent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
{{ include "pando.selector" .root | indent 14 }}
              app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- end -}}

{{- /* A replica set: its service of names, its members, and how many of them may be away. Argument: root, part, set, role, members. */ -}}
{{- define "pando.members" -}}
{{- $name := printf "%s-%s" (include "pando.fullname" .root) .part -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels:
{{ include "pando.labels" .root | indent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  clusterIP: None
  # Members find each other before they are ready: that makes them ready.
  publishNotReadyAddresses: true
  selector:
{{ include "pando.selector" .root | indent 4 }}
    app.kubernetes.io/component: {{ .part }}
  ports:
    - name: mongodb
      port: 27017
      targetPort: mongodb
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels:
{{ include "pando.labels" .root | indent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
{{ include "pando.selector" .root | indent 6 }}
      app.kubernetes.io/component: {{ .part }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels:
{{ include "pando.labels" .root | indent 4 }}
    app.kubernetes.io/component: {{ .part }}
spec:
  serviceName: {{ $name }}
  replicas: {{ .members }}
  # A set needs a majority to lead: members do not wait for each other to start. Updates go one by one all the same.
  podManagementPolicy: Parallel
  selector:
    matchLabels:
{{ include "pando.selector" .root | indent 6 }}
      app.kubernetes.io/component: {{ .part }}
  template:
    metadata:
      labels:
{{ include "pando.labels" .root | indent 8 }}
        app.kubernetes.io/component: {{ .part }}
      annotations:
        checksum/scripts: {{ .root.Files.Get "files/start.sh" | sha256sum }}
{{- if .root.Values.metrics.enabled }}
        prometheus.io/scrape: "true"
        prometheus.io/port: {{ .root.Values.metrics.port | quote }}
{{- end }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . | indent 8 }}
{{- end }}
    spec:
{{ include "pando.pod" (dict "root" .root "component" .part) | indent 6 }}
      containers:
        - name: pando
{{ include "pando.container" . | indent 10 }}
          command: ["bash", "/opt/pando/start.sh"]
{{- with .root.Values.extraArgs }}
          args:
{{ toYaml . | indent 12 }}
{{- end }}
          resources:
{{ toYaml .root.Values.resources | indent 12 }}
          volumeMounts:
            - {name: data, mountPath: /data/db}
{{ include "pando.mounts" .root | indent 12 }}
      volumes:
{{ include "pando.volumes" .root | indent 8 }}
  volumeClaimTemplates:
    - metadata:
        name: data
      spec:
        accessModes: ["ReadWriteOnce"]
{{- with .root.Values.storage.className }}
        storageClassName: {{ . }}
{{- end }}
        resources:
          requests:
            storage: {{ .root.Values.storage.size }}
{{- end -}}
