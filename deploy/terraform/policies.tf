data "aws_iam_policy_document" "worker" {
  statement {
    sid = "Jobs"

    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:ConditionCheckItem",
      "dynamodb:DeleteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:UpdateItem",
    ]

    resources = [
      aws_dynamodb_table.jobs.arn,
      aws_dynamodb_table.beside.arn,
      "${aws_dynamodb_table.jobs.arn}/index/*",
    ]
  }

  statement {
    sid = "Queue"

    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
      "sqs:SendMessage",
    ]

    resources = [
      aws_sqs_queue.jobs.arn,
    ]
  }

  statement {
    sid = "DeadLetters"

    actions = [
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueUrl",
      "sqs:ReceiveMessage",
      "sqs:SendMessage",
    ]

    resources = [
      aws_sqs_queue.dlq.arn,
    ]
  }
}

resource "aws_iam_policy" "worker" {
  name   = "${var.table_name}-worker"
  policy = data.aws_iam_policy_document.worker.json
  tags   = var.tags
}

data "aws_iam_policy_document" "enqueuer" {
  statement {
    sid = "Jobs"

    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:ConditionCheckItem",
      "dynamodb:DeleteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:UpdateItem",
    ]

    resources = [
      aws_dynamodb_table.jobs.arn,
      aws_dynamodb_table.beside.arn,
    ]
  }

  statement {
    sid = "Queue"

    actions = [
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:SendMessage",
    ]

    resources = [
      aws_sqs_queue.jobs.arn,
    ]
  }

  statement {
    sid = "DeadLetters"

    actions = [
      "sqs:GetQueueUrl",
    ]

    resources = [
      aws_sqs_queue.dlq.arn,
    ]
  }
}

resource "aws_iam_policy" "enqueuer" {
  name   = "${var.table_name}-enqueuer"
  policy = data.aws_iam_policy_document.enqueuer.json
  tags   = var.tags
}

data "aws_iam_policy_document" "operator" {
  statement {
    sid = "Jobs"

    actions = [
      "dynamodb:BatchGetItem",
      "dynamodb:BatchWriteItem",
      "dynamodb:ConditionCheckItem",
      "dynamodb:DeleteItem",
      "dynamodb:DescribeTable",
      "dynamodb:GetItem",
      "dynamodb:PutItem",
      "dynamodb:Query",
      "dynamodb:Scan",
      "dynamodb:UpdateItem",
    ]

    resources = [
      aws_dynamodb_table.jobs.arn,
      aws_dynamodb_table.beside.arn,
      "${aws_dynamodb_table.jobs.arn}/index/*",
    ]
  }

  statement {
    sid = "Queue"

    actions = [
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:SendMessage",
    ]

    resources = [
      aws_sqs_queue.jobs.arn,
    ]
  }

  statement {
    sid = "DeadLetters"

    actions = [
      "sqs:CancelMessageMoveTask",
      "sqs:ChangeMessageVisibility",
      "sqs:DeleteMessage",
      "sqs:GetQueueAttributes",
      "sqs:GetQueueUrl",
      "sqs:ListMessageMoveTasks",
      "sqs:ReceiveMessage",
      "sqs:SendMessage",
      "sqs:StartMessageMoveTask",
    ]

    resources = [
      aws_sqs_queue.dlq.arn,
    ]
  }
}

resource "aws_iam_policy" "operator" {
  name   = "${var.table_name}-operator"
  policy = data.aws_iam_policy_document.operator.json
  tags   = var.tags
}
