// Every word of the page, in English and in Chinese. {0}, {1}, … are put in.
const words = {
  "skip": ["Skip to the content", "跳到正文"],
  "language": ["Language", "语言"], "theme": ["Light or dark", "明暗"], "views": ["Views", "视图"],
  "login": ["Log in", "登录"], "logout": ["Log out", "退出"], "user": ["User", "用户"], "password": ["Password", "密码"],
  "source": ["Database of the user", "用户所在数据库"], "wrong": ["User, password or database is wrong.", "用户、密码或数据库不正确。"],
  "unreachable": ["The server does not answer.", "服务器没有响应。"], "refused": ["refused", "被拒绝"], "notAllowed": ["Your roles do not let you see this.", "你的角色无权查看此内容。"],
  "set": ["set", "副本集"], "node": ["server", "服务器"], "router": ["router", "路由"], "version": ["Version", "版本"],
  "nothing": ["Nothing.", "无。"], "loads": ["Loading…", "加载中…"], "again": ["Read again", "重新读取"], "look": ["Look", "查看"],
  "cancel": ["Cancel", "取消"], "pause": ["pause", "暂停"], "before": ["Back", "上一页"], "after": ["On", "下一页"],
  "time": ["Time", "时间"], "name": ["Name", "名称"], "state": ["State", "状态"], "client": ["Client", "客户端"], "namespace": ["Collection", "集合"], "operation": ["Operation", "操作"],
  "uptime": ["Uptime", "运行时间"], "lag": ["Lag", "延迟"], "key": ["Key", "键"], "size": ["Size", "大小"], "onDisk": ["On disk", "磁盘占用"], "indexes": ["Indexes", "索引"],
  "indexSize": ["Size of indexes", "索引大小"], "documents": ["Documents", "文档数"], "average": ["Average document", "平均文档"], "databases": ["Databases", "数据库"], "collections": ["Collections", "集合"],
  "sharded": ["sharded", "已分片"], "field": ["Field", "字段"], "share": ["In", "占比"], "types": ["Types", "类型"], "examples": ["Examples", "示例"], "schema": ["Fields", "字段结构"], "notes": ["What to look at", "需要关注"],

  "plan": ["Plan", "执行计划"], "locks": ["Locks", "锁"], "shard": ["Shard", "分片"], "progress": ["Progress", "进度"],
  "throttles": ["Throttles that hold", "生效的限流"], "throttles.none": ["None.", "没有。"], "throttle.locked": ["All writes are locked, by fsync or for a backup: {0} locks.", "全部写入被锁(fsync 或备份):{0} 个锁。"],
  "throttle.stopped": ["Writes are stopped: merging cannot keep up.", "写入已停止:合并跟不上。"], "throttle.delayed": ["Writes are held to {0} a second, since merging is behind.", "合并落后,写入限于每秒 {0}。"], "throttle.pace": ["Writes wait {0} ms for each MB, since merging is behind.", "合并落后,每 MB 写入等待 {0} 毫秒。"],
  "throttle.moves": ["{0} writes a second wait for a move of their range.", "每秒 {0} 个写入在等待其范围的迁移。"], "throttle.memory": ["{0} long messages wait: those under way may take {1}.", "{0} 个大消息在等待:处理中的消息上限 {1}。"], "throttle.establishment": ["{0} new connections wait: more come than are let in a second.", "{0} 个新连接在等待:超过每秒允许数。"],
  "moves": ["Moves under way", "进行中的迁移"], "moves.none": ["Nothing moves.", "没有迁移。"], "note.locked": ["All writes are locked, by fsync or for a backup.", "全部写入被锁(fsync 或备份)。"],
  "chart.moves": ["Moves under way by this router", "本路由进行中的迁移"], "series.moves": ["moves", "迁移"],
  "running.locked": ["Writes are locked", "写入被锁"], "running.lockedWhy": ["{0} locks against all writes are held: by fsync, or for a backup.", "有 {0} 个全局写锁:fsync 或备份。"],
  "locks.waits": ["waits for the lock against all writes", "等待全局写锁"], "locks.documents": ["what its {0} statements have written", "其 {0} 条语句写入的文档"], "locks.read": ["to read: {0}", "读:{0}"], "locks.write": ["to write: {0}", "写:{0}"],
  "time.states": ["States and elections", "状态与选举"], "time.copies": ["Copies of members", "成员间复制"], "time.trouble": ["Trouble", "异常"],
  "shards.members": ["Members of the shards", "各分片成员"], "shards.silent": ["is not reached", "无法访问"],
  "log.startLines": ["What it said while it started ({0} lines)", "启动时的日志({0} 行)"],
  "backup.age": ["The last backup is this old:", "最近一次备份距今:"], "backup.none": ["no backup is known", "没有已知的备份"], "backup.how": ["pando backup makes one, and tells the server.", "用 pando backup 备份,服务器即会知晓。"], "backup.notAllowed": ["Your roles do not show when the last backup was.", "您的角色无权查看最近的备份。"],

  "view.now": ["Now", "现在"], "view.running": ["Running", "运行中"], "view.slow": ["Slow", "慢操作"], "view.data": ["Data", "数据"],
  "view.members": ["Members", "成员"], "view.shards": ["Shards", "分片"], "view.log": ["Log", "日志"],

  "note.well": ["Nothing that needs a look.", "没有需要关注的问题。"],
  "note.diskFull": ["The disk is nearly full: {0} of {1} are free. Writes fail when it is full.", "磁盘将满:{1} 中仅剩 {0}。写满后写入会失败。"],
  "note.diskLow": ["The disk fills up: {0} of {1} are free.", "磁盘空间不足:{1} 中剩余 {0}。"],
  "note.writesStopped": ["Writes are stopped: the engine merges files and cannot keep up.", "写入已停止:存储引擎合并跟不上。"],
  "note.writesSlowed": ["Writes are slowed down until merging has caught up.", "写入被限速,直到合并赶上。"],
  "note.backgroundErrors": ["The engine has failed in the background: see the log.", "存储引擎后台出错:请看日志。"],
  "note.lag": ["This member is {0} behind its primary.", "本成员落后主节点 {0}。"],
  "note.worstLag": ["A member is {0} behind the primary.", "有成员落后主节点 {0}。"],
  "note.down": ["{0} members of the set are not reached.", "有 {0} 个成员无法访问。"],
  "note.locks": ["{0} operations wait for locks of others.", "{0} 个操作在等待锁。"],
  "note.memory": ["{0} long messages wait for memory.", "{0} 个大消息在等待内存。"],
  "note.slow": ["Slow: {1} on {0} takes {2} each time and examines {3} for each document that it gives. The index {4} would serve it.", "慢:{0} 上的 {1} 每次 {2},每返回一个文档检查 {3} 个。建议索引 {4}。"],

  "figure.operations": ["Operations a second", "每秒操作"], "figure.read": ["Reads, 95 of 100 within", "读取 P95"], "figure.write": ["Writes, 95 of 100 within", "写入 P95"],
  "figure.connections": ["Connections", "连接"], "figure.waiting": ["Waiting requests", "等待的请求"], "figure.cpu": ["CPU", "CPU"], "figure.cache": ["Cache", "缓存"],
  "figure.disk": ["Disk used", "磁盘已用"], "figure.lag": ["Replication lag", "复制延迟"], "figure.uptime": ["Uptime", "运行时间"],

  "chart.operations": ["Operations a second", "每秒操作"], "chart.latencyRead": ["Latency of reads", "读取延迟"], "chart.latencyWrite": ["Latency of writes", "写入延迟"],
  "chart.waiting": ["Waiting requests", "等待的请求"], "chart.connections": ["Connections", "连接"], "chart.cpu": ["CPU of the process", "进程 CPU"], "chart.memory": ["Memory", "内存"],
  "chart.network": ["Bytes a second", "每秒字节"], "chart.disk": ["Free disk", "剩余磁盘"], "chart.reading": ["Read a second", "每秒读取"], "chart.lag": ["Replication lag", "复制延迟"],
  "series.query": ["query", "查询"], "series.insert": ["insert", "插入"], "series.update": ["update", "更新"], "series.delete": ["delete", "删除"], "series.getmore": ["getMore", "getMore"], "series.command": ["command", "命令"],
  "series.readMicrosP50": ["50 %", "50 %"], "series.readMicrosP95": ["95 %", "95 %"], "series.readMicrosP99": ["99 %", "99 %"],
  "series.writeMicrosP50": ["50 %", "50 %"], "series.writeMicrosP95": ["95 %", "95 %"], "series.writeMicrosP99": ["99 %", "99 %"],
  "series.waitingForLocks": ["for locks", "等待锁"], "series.waitingForMemory": ["for memory", "等待内存"], "series.waitingForEstablishment": ["to be connected", "等待建立连接"], "series.waitingForNews": ["for news of the topology", "等待拓扑变化"],
  "series.connections": ["open", "已打开"], "series.connectionsActive": ["busy", "忙碌"], "series.cpuPercent": ["of one core", "占单核"],
  "series.cacheBytes": ["cache", "缓存"], "series.dirtyBytes": ["not yet written", "未落盘"], "series.stageBytes": ["stages", "阶段"], "series.residentBytes": ["process", "进程"],
  "series.bytesIn": ["in", "入"], "series.bytesOut": ["out", "出"], "series.diskFreeBytes": ["free", "剩余"], "series.documentsExamined": ["documents examined", "检查的文档"], "series.documentsReturned": ["documents returned", "返回的文档"], "series.diskReads": ["reads from disk", "磁盘读取"], "series.lagSeconds": ["this member", "本成员"], "series.worstLagSeconds": ["the last of all", "最落后者"],
  "waits": ["What waits", "谁在等待"], "nothingWaits": ["No request waits.", "没有请求在等待。"],
  "why.waitingForLocks": ["another operation has locked the same document, or everything.", "另一操作锁住了同一文档或全部。"], "why.waitingForMemory": ["long messages share a bounded memory.", "大消息共享有限内存。"],
  "why.waitingForEstablishment": ["more connections come than are let in a second.", "新连接多于每秒允许数。"], "why.waitingForNews": ["drivers that watch this server: this is usual.", "驱动在监视服务器:正常现象。"],

  "running.all": ["Operations of all users", "所有用户的操作"], "running.own": ["Your own operations: your roles show no others", "仅你自己的操作:角色不允许查看其他"], "running.idle": ["idle ones, drivers that watch, and the console's own too", "包括空闲的、监视的驱动和控制台自己的"], "running.nothing": ["Nothing runs at this moment.", "此刻没有操作在运行。"],
  "kill.short": ["Kill…", "终止…"], "kill.title": ["Kill this operation?", "终止此操作?"], "kill.text": ["Operation {0} has run for {1} on {2}. What it has written stays.", "操作 {0} 在 {2} 上已运行 {1}。已写入的内容会保留。"], "kill.yes": ["Kill", "终止"], "kill.done": ["The operation was told to end.", "已通知操作结束。"],
  "state.runs": ["runs", "运行"], "state.waits": ["waits for a lock", "等待锁"], "state.killed": ["is being killed", "正在终止"], "state.idle": ["idle", "空闲"], "state.transaction": ["open transaction", "打开的事务"],

  "slow.about": ["Operations that the log calls slow (now: above {0} ms) since the start of the server, by their shape; what took most time in all comes first.", "自服务器启动以来日志记为慢的操作(当前阈值 {0} 毫秒),按查询形状分组;总耗时最多的在前。"],
  "slow.notKept": ["{0} were not kept.", "{0} 个未被保留。"], "slow.nothing": ["No operation was slow.", "没有慢操作。"], "slow.times": ["times", "次"], "slow.each": ["each", "每次"], "slow.longest": ["longest", "最长"], "slow.last": ["last", "最近"],
  "slow.examined": ["{0} examined for each returned", "每返回一个检查 {0} 个"], "slow.sorts": ["sorts in memory", "内存排序"], "slow.share": ["{0} percent of the time of all slow operations", "占所有慢操作时间的 {0}%"], "slow.example": ["The newest one", "最近一次"], "slow.plan": ["Its plan now", "当前执行计划"], "slow.noPlan": ["There is no plan for this kind of command.", "此类命令没有执行计划。"],
  "advice": ["Index", "索引建议"], "advice.title": ["The index that would serve it", "可用的索引"], "advice.exists": ["There is such an index: it was made since, or the planner found another better.", "已有这样的索引:可能是后来建立,或优化器选择了其他索引。"],
  "advice.scan": ["Every document is read: {0} each time, for {1} that are wanted.", "每次读取全部 {0} 个文档,只需要 {1} 个。"], "advice.sort": ["What is found is sorted in memory each time.", "每次都在内存中排序。"], "advice.examined": ["{0} are read each time, for {1} that are wanted.", "每次读取 {0} 个,只需要 {1} 个。"],
  "advice.equality": ["First what is compared for equality: {0}.", "先放等值字段:{0}。"], "advice.order": ["Then the order that is asked for: {0}.", "再放排序字段:{0}。"], "advice.range": ["Last the ranges: {0}.", "最后放范围字段:{0}。"],

  "tree": ["Plan", "执行计划"], "tree.returned": ["returned", "返回"], "tree.documents": ["documents", "文档"], "tree.keys": ["keys", "键"], "tree.time": ["time", "时间"], "tree.raw": ["All of explain", "完整 explain"],
  "tree.scan": ["Reads every document of the collection.", "读取集合中的每个文档。"], "tree.sort": ["Sorts in memory: an index in this order would spare it.", "内存排序:按此顺序的索引可以避免。"], "tree.sum": ["{0} returned, {1} keys and {2} documents examined, {3}", "返回 {0},检查键 {1}、文档 {2},{3}"],

  "data.choose": ["Choose a database.", "请选择数据库。"], "data.filter": ["Part of the name", "名称过滤"], "data.of": ["{0} to {1} of {2}", "{2} 中的 {0} 到 {1}"],
  "index.used": ["Used", "使用次数"], "index.since": ["since {0}", "自 {0}"], "index.unused": ["unused", "未使用"],
  "schema.sample": ["Documents to look at", "采样文档数"], "schema.looked": ["{0} were looked at", "已查看 {0} 个"],
  "query": ["Query", "查询"], "query.filter": ["Filter", "过滤条件"], "query.projection": ["Projection", "投影"], "query.sort": ["Sort", "排序"], "query.pipeline": ["Pipeline", "管道"], "query.limit": ["At most", "最多"], "query.mode": ["Command", "命令"], "query.run": ["Run", "运行"], "query.explain": ["Explain", "执行计划"], "query.got": ["{0} documents in {1}", "{0} 个文档,用时 {1}"],

  "members.self": ["this one", "本机"], "members.ping": ["Ping", "往返"], "members.optime": ["Newest write", "最新写入"], "members.source": ["Follows", "同步源"], "members.votes": ["Priority / votes", "优先级 / 票"], "members.delayed": ["delayed {0}", "延迟 {0}"], "members.term": ["term", "任期"], "members.events": ["Elections and states", "选举与状态"], "members.config": ["Configuration of the set", "副本集配置"],
  "shards.hosts": ["Hosts", "主机"], "shards.draining": ["is drained", "正在移出"], "shards.chunks": ["Chunks by shard", "各分片的块"], "shards.byShard": ["Chunks", "块"], "shards.notBalanced": ["not balanced", "不均衡"], "shards.balancerOn": ["balancer on", "均衡器开"], "shards.balancerOff": ["balancer off", "均衡器关"], "shards.moves": ["a move is under way", "正在迁移"], "shards.events": ["Moves and changes", "迁移与变更"], "shards.routers": ["Routers", "路由"], "shards.ping": ["Heard of", "最近联系"],
  "log.level": ["Level", "级别"], "log.component": ["Component", "组件"], "log.components": ["all components", "所有组件"], "log.message": ["Message", "消息"], "log.warnings": ["warnings and errors", "警告和错误"], "log.all": ["all", "全部"], "log.search": ["Search", "搜索"], "log.start": ["Warnings of the last start", "上次启动的警告"], "log.noWarnings": ["There were none.", "没有。"],
  "log.certificate": ["The server's certificate ends in {0} days:", "服务器证书还有 {0} 天到期:"], "log.noCertificate": ["Connections are not encrypted: there is no certificate.", "连接未加密:没有证书。"],
};

let chosen = localStorage.getItem("language") || (navigator.language.startsWith("zh") ? "zh" : "en");
export const language = () => (chosen === "zh" ? "zh" : "en");
export function setLanguage(name) {
  chosen = name === "zh" ? "zh" : "en";
  localStorage.setItem("language", chosen);
}

export function t(key, ...values) {
  const known = Object.hasOwn(words, key) ? words[key] : null;
  const text = known ? known[chosen === "zh" ? 1 : 0] : key;
  return text.replace(/\{(\d)\}/g, (_, i) => values[i] ?? "");
}
